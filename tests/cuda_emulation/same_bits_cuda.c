/* tests/cuda_emulation/same_bits_cuda.c - the places of layers in a test with emulated GPUs. The linker passes the
 * creation of backends to this file (--wrap), which counts the programs that they run. */
// SPDX-License-Identifier: Apache-2.0
#include <stdatomic.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"
#include "tests/cluster/same_bits_places.h"
#include "tests/support/test.h"
#include "worker/stage/devices_check.h"

enum { MOST_STATE_PROGRAMS = 16 }; /* of a stage, in one run of a test */
enum { DEVICE_EXPERTS = 2 };       /* of each layer with experts */
enum { ON_THE_CPU, EVERY_STAGE, EVERY_OTHER_STAGE, FIRST_LAYERS, HALVES, SOME_EXPERTS, N_PLACES };
const int PLACES_N = N_PLACES - 1;

/* Programs that all backends of a kind have run. */
typedef struct kind_runs {
    const mr_backend_ops *plain;
    mr_backend_ops counted;
    atomic_int_fast64_t n;
} kind_runs;
static kind_runs cpu_runs, device_runs;

/* --- Counting ---------------------------------------------------------------------------------------------------- */

static mr_status submit_to_cpu(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err) {
    cpu_runs.n++;
    return cpu_runs.plain->submit(be, program, run, out, err);
}

static mr_status submit_to_device(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err) {
    device_runs.n++;
    return device_runs.plain->submit(be, program, run, out, err);
}

/* Backends of a kind share one table of functions. */
static void watch(mr_backend *be, kind_runs *runs,
                  mr_status (*submit)(mr_backend *, mr_program *, const mr_run *, mr_fence *, mr_err *)) {
    assert_true(!runs->plain || runs->plain == be->ops);
    runs->plain = be->ops;
    runs->counted = *be->ops;
    runs->counted.submit = submit;
    be->ops = &runs->counted;
}

mr_status __real_mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err);
mr_status __wrap_mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err);
mr_status __real_mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out, mr_err *err);
mr_status __wrap_mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out, mr_err *err);

mr_status __wrap_mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err) {
    mr_status status = __real_mr_cpu_backend_create(options, out, err);
    if (status == MR_OK)
        watch(*out, &cpu_runs, submit_to_cpu);
    return status;
}

mr_status __wrap_mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out, mr_err *err) {
    mr_status status = __real_mr_cuda_backend_create(options, out, err);
    if (status == MR_OK)
        watch(*out, &device_runs, submit_to_device);
    return status;
}

/* The digest of the emulated device does not change: once is enough. */
mr_status __real_mr_devices_check(mr_devices *d, mr_err *err);
mr_status __wrap_mr_devices_check(mr_devices *d, mr_err *err);
mr_status __wrap_mr_devices_check(mr_devices *d, mr_err *err) {
    static bool is_checked;
    mr_status status = is_checked ? MR_OK : __real_mr_devices_check(d, err);
    is_checked = is_checked || (status == MR_OK && d->list.n > 0);
    return status;
}

/* --- Places ------------------------------------------------------------------------------------------------------ */

const char *places_name(int place) {
    static const char *const NAMES[] = {"on the CPU",
                                        "on devices",
                                        "every other stage on a device",
                                        "first layers on devices",
                                        "halves of stages on devices",
                                        "on devices but for most experts"};
    return NAMES[place];
}

mr_devices_config places_devices(int place) {
    return (mr_devices_config){.backend = place == ON_THE_CPU ? NULL : "cuda"};
}

static int32_t layers_on_device(int place, const mr_plan *plan, int32_t stage_idx) {
    int32_t n = plan->stages[stage_idx].last - plan->stages[stage_idx].first;
    switch (place) {
    case EVERY_STAGE:
    case SOME_EXPERTS:
        return n;
    case EVERY_OTHER_STAGE:
        return stage_idx % 2 == 0 ? n : 0;
    case FIRST_LAYERS:
        return 1;
    case HALVES:
        return (n + 1) / 2;
    default:
        return 0;
    }
}

/* With a part of the layers, a part of their neurons. */
void places_apply(int place, int32_t n_partitions, mr_plan *plan) {
    bool has_cold = n_partitions > 0 && (place == FIRST_LAYERS || place == HALVES);
    for (int32_t i = 0; i < plan->n_stages; i++) {
        mr_plan_stage *s = &plan->stages[i];
        s->device_layers = layers_on_device(place, plan, i);
        s->cold_partitions = has_cold ? 1 + i % n_partitions : 0;
        if (place == SOME_EXPERTS) {
            s->host_experts = s->device_layers;
            s->device_experts = DEVICE_EXPERTS;
        }
    }
}

void places_begin(void) {
    cpu_runs.n = device_runs.n = 0;
}

/* A stage runs a program in a step, and more if its device does not hold all of its layers and neurons: then the CPU
 * may compute angles while the device works. Programs that change the state of sequences come on top. */
void places_check(int place, const mr_plan *plan, int64_t n_steps, const char *what) {
    int64_t n_cpu = 0, n_devices = 0, n_cold = 0, on_cpu = cpu_runs.n, on_devices = device_runs.n;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        n_devices += s->device_layers > 0;
        n_cpu += s->device_layers < s->last - s->first || s->cold_partitions > 0;
        n_cold += s->cold_partitions > 0;
    }
    bool is_good = on_cpu >= n_cpu * n_steps && on_devices >= n_devices * n_steps;
    if (place != SOME_EXPERTS) /* the plan does not say which layers have experts */
        is_good = is_good && (n_cpu > 0 || on_cpu == 0) &&
                  (n_cold > 0 || on_devices <= n_devices * (n_steps + MOST_STATE_PROGRAMS));
    if (place != ON_THE_CPU && !is_good)
        fail_msg("%s: in %d steps the CPU ran %d programs for %d stages, and devices %d programs for %d stages", what,
                 (int)n_steps, (int)on_cpu, (int)n_cpu, (int)on_devices, (int)n_devices);
}
