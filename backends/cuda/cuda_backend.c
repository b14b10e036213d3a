/* backends/cuda/cuda_backend.c - creates and destroys the CUDA backend, describes it, and keeps its permanent error. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"

#include <stdio.h>

#include "backends/cuda/cuda_device.h"
#include "engine/base/mem.h"

enum { NEEDED_CAPABILITY = 8 }; /* the major number: the kernels are built for sm_80 and newer */

mr_status cuda_check(cuda_backend *be, cuda_result result, const char *what, mr_err *err) {
    if (result == CUDA_OK)
        return MR_OK;
    (void)cuda_driver_error(be->driver, result, what, &be->broken);
    be->broken.status = MR_E_DEVICE;
    if (be->stream)
        (void)be->driver->stream_synchronize(be->stream);
    return mr_err_set(err, MR_E_DEVICE, "%s: %s", be->info.name, be->broken.text);
}

mr_status cuda_check_new(cuda_backend *be, cuda_result result, const char *what, mr_err *err) {
    if (result != CUDA_OUT_OF_MEMORY)
        return cuda_check(be, result, what, err);
    mr_err why = {0};
    mr_status status = cuda_driver_error(be->driver, result, what, &why);
    return mr_err_set(err, status, "%s: %s", be->info.name, why.text);
}

mr_status cuda_enter(cuda_backend *be, mr_err *err) {
    if (be->broken.status != MR_OK)
        return mr_err_set(err, be->broken.status, "%s has failed: %s", be->info.name, be->broken.text);
    return cuda_check(be, be->driver->ctx_set_current(be->context), "enter the context", err);
}

static void describe(const mr_backend *base, mr_device_info *out) {
    *out = ((const cuda_backend *)base)->info;
}

static bool supports(const mr_backend *base, const mr_tensor *tensors, const mr_node *node) {
    const cuda_op *op = cuda_op_find(node->op);
    return op && op->supports(tensors, node) &&
           (!op->shared_bytes || op->shared_bytes(tensors, node) <= (size_t)((const cuda_backend *)base)->shared_bytes);
}

static void destroy(mr_backend *base) {
    cuda_backend *be = (cuda_backend *)base;
    if (be->context) {
        const cuda_driver *d = be->driver;
        (void)d->ctx_set_current(be->context);
        if (be->stream)
            (void)d->stream_synchronize(be->stream);
        cuda_memory_free(be, be->staging);
        cuda_link_deinit(be);
        cuda_record_deinit(be);
        cuda_queue_deinit(be);
        cuda_kernels_unload(be);
        (void)d->device_primary_ctx_release(be->device);
    }
    mr_free(be);
}

static const mr_backend_ops OPS = {
    .destroy = destroy,
    .describe = describe,
    .supports = supports,
    .buffer_create = cuda_buffer_create,
    .buffer_wrap = cuda_buffer_wrap,
    .buffer_destroy = cuda_buffer_destroy,
    .set = cuda_set,
    .get = cuda_get,
    .weight_bytes = cuda_matrix_bytes,
    .weight_load = cuda_weight_load,
    .scratch_bytes = cuda_program_scratch_bytes,
    .program_create = cuda_program_create,
    .program_destroy = cuda_program_destroy,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .mark = cuda_mark,
    .fence_ns = cuda_fence_ns,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .link = &cuda_link_ops,
};

/* Asks for the driver's version, which must be new enough. */
static mr_status check_driver(cuda_backend *be, int *out_version, mr_err *err) {
    mr_status status = cuda_check(be, be->driver->driver_get_version(out_version), "ask for its version", err);
    if (status == MR_OK && *out_version < CUDA_NEEDED_VERSION)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "the NVIDIA driver is for CUDA %d.%d; hint: install a driver for CUDA %d.%d or newer",
                          *out_version / 1000, *out_version % 1000 / 10, CUDA_NEEDED_VERSION / 1000,
                          CUDA_NEEDED_VERSION % 1000 / 10);
    return status;
}

static mr_status find_device(cuda_backend *be, int32_t number, mr_err *err) {
    const cuda_driver *d = be->driver;
    int n = 0;
    cuda_result result = d->init(0);
    if (result == CUDA_OK)
        result = d->device_get_count(&n);
    if (result == CUDA_NO_DEVICE || (result == CUDA_OK && (number < 0 || number >= n)))
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "there is no CUDA device %d, devices: %d; hint: nvidia-smi lists the devices, and the "
                          "variable CUDA_VISIBLE_DEVICES may hide some",
                          number, n);
    mr_status status = cuda_check(be, result, "count the devices", err);
    return status == MR_OK ? cuda_check(be, d->device_get(&be->device, number), "find the device", err) : status;
}

/* Finds the device, and what it can do. name: at least 100 bytes. */
static mr_status open_device(cuda_backend *be, int32_t number, char *name, int size, mr_err *err) {
    const cuda_driver *d = be->driver;
    const struct {
        cuda_device_attribute attribute;
        int *value;
    } attributes[] = {{CUDA_ATTRIBUTE_PROCESSORS, &be->n_processors},
                      {CUDA_ATTRIBUTE_SHARED_BYTES_OPT_IN, &be->shared_bytes},
                      {CUDA_ATTRIBUTE_CAPABILITY_MAJOR, &be->capability[0]},
                      {CUDA_ATTRIBUTE_CAPABILITY_MINOR, &be->capability[1]}};
    mr_status status = find_device(be, number, err);
    if (status == MR_OK)
        status = cuda_check(be, d->device_get_uuid(&be->uuid, be->device), "read its uuid", err);
    if (status == MR_OK)
        status = cuda_check(be, d->device_get_name(name, size, be->device), "read its name", err);
    if (status == MR_OK)
        snprintf(be->info.name, sizeof be->info.name, "CUDA device %d, %.100s", number, name);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes && status == MR_OK; i++)
        status = cuda_check(be, d->device_get_attribute(attributes[i].value, attributes[i].attribute, be->device),
                            "read its properties", err);
    return status;
}

static mr_status check_capability(const cuda_backend *be, mr_err *err) {
    if (be->capability[0] >= NEEDED_CAPABILITY)
        return MR_OK;
    return mr_err_set(err, MR_E_UNSUPPORTED, "%s has compute capability %d.%d, the kernels need %d.0 or newer",
                      be->info.name, be->capability[0], be->capability[1], NEEDED_CAPABILITY);
}

static mr_status open_context(cuda_backend *be, mr_err *err) {
    mr_status status =
        cuda_check_new(be, be->driver->device_primary_ctx_retain(&be->context, be->device), "create a context", err);
    return status == MR_OK ? cuda_enter(be, err) : status;
}

int32_t mr_cuda_count(const cuda_driver *driver) {
    int n = 0;
    return driver->init(0) == CUDA_OK && driver->device_get_count(&n) == CUDA_OK ? n : 0;
}

mr_status mr_cuda_about(const cuda_driver *driver, int32_t device, mr_device_about *out, mr_err *err) {
    mr_device_about about = {0};
    int version = 0;
    cuda_backend *be = mr_alloc(sizeof *be); /* of which only what the calls below fill in is used */
    if (!be)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the CUDA backend");
    be->driver = driver;
    be->info = (mr_device_info){.name = "CUDA"};
    mr_status status = check_driver(be, &version, err);
    if (status == MR_OK)
        status = open_device(be, device, about.name, sizeof about.name, err);
    if (status == MR_OK)
        status = cuda_check(be, driver->device_total_mem(&about.memory_bytes, be->device), "ask for memory", err);
    if (status == MR_OK) {
        snprintf(about.driver, sizeof about.driver, "driver for CUDA %d.%d", version / 1000, version % 1000 / 10);
        snprintf(about.capability, sizeof about.capability, "compute capability %d.%d", be->capability[0],
                 be->capability[1]);
        (void)!check_capability(be, &about.problem);
        *out = about;
    }
    mr_free(be);
    return status;
}

bool mr_cuda_multiplies(mr_type type, int32_t columns) {
    return cuda_weight_bytes(type, columns, MR_PANEL) > 0;
}

/* Sets the most bytes of the buffers. */
static mr_status limit_memory(cuda_backend *be, const mr_cuda_options *o, mr_err *err) {
    size_t free_bytes = 0, total_bytes = 0;
    mr_status status = cuda_check(be, be->driver->mem_get_info(&free_bytes, &total_bytes), "ask for memory", err);
    size_t part = o->n_sharers > 1 ? total_bytes / (size_t)o->n_sharers : free_bytes;
    part = part < free_bytes ? part : free_bytes;
    be->info.memory_bytes = o->memory_bytes > 0 && o->memory_bytes < part ? o->memory_bytes : part;
    return status;
}

mr_status mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out, mr_err *err) {
    cuda_backend *be = mr_alloc(sizeof *be);
    if (!be)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the CUDA backend");
    be->base.ops = &OPS;
    be->driver = options->driver;
    be->info = (mr_device_info){.name = "CUDA", .alignment = CUDA_ALIGNMENT, .exact = true};
    char name[100] = "";
    int version = 0;
    mr_status status = check_driver(be, &version, err);
    if (status == MR_OK)
        status = open_device(be, options->device, name, sizeof name, err);
    if (status == MR_OK)
        status = check_capability(be, err);
    if (status == MR_OK)
        status = open_context(be, err);
    if (status == MR_OK)
        status = cuda_kernels_load(be, options->images, err);
    if (status == MR_OK)
        status = cuda_queue_init(be, err);
    if (status == MR_OK)
        status = cuda_record_init(be, err);
    if (status == MR_OK)
        status = cuda_memory_alloc(be, CUDA_STAGING_BYTES, "weights on their way", &be->staging, err);
    if (status == MR_OK)
        status = cuda_check(be, be->driver->stream_synchronize(be->stream), "start", err);
    if (status == MR_OK)
        status = limit_memory(be, options, err);
    if (status == MR_OK)
        *out = &be->base;
    else
        destroy(&be->base);
    return status;
}
