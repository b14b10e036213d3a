/* worker/stage/products_measure.c - times a product on a backend: runs a graph of this product alone, with the matrix
 * in the layout that a stage uses. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/graph/graph.h"
#include "worker/stage/devices.h"
#include "worker/stage/products.h"

enum {
    LEAST_RUNS = 3,
    MOST_RUNS = 20,        /* the fastest run counts */
    MOST_MACS = 512 << 20, /* multiply-adds of one product: some 10 ms */
    LEAST_N = 64,
};

static const int64_t ENOUGH_NS =
    30 * MR_NS_PER_S / 1000; /* for one product on one backend: others may use the machine */

typedef struct trial {
    mr_backend *be;
    mr_graph *graph;
    mr_buffer *matrix, *work;
    float *x; /* activations */
} trial;

static void trial_deinit(trial *t) {
    mr_graph_destroy(t->graph);
    t->be->ops->buffer_destroy(t->be, t->matrix);
    t->be->ops->buffer_destroy(t->be, t->work);
    mr_free(t->x);
}

/* Places the matrix as a stage does: in the layout of the backend, or in the mapped file. */
static mr_status place_matrix(trial *t, const mr_product_sample *s, mr_tensor *w, mr_err *err) {
    const mr_backend_ops *ops = t->be->ops;
    mr_fence fence = 0;
    mr_storage storage = s->is_mapped ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
    if (!mr_tensor_init(w, "matrix", s->type, s->k, s->n, storage, MR_ROWS_FIXED) ||
        !mr_type_bytes(s->type, s->k, &w->row_bytes))
        return mr_err_set(err, MR_E_INTERNAL, "a matrix of %d x %d", s->n, s->k);
    w->bytes = w->row_bytes * (size_t)s->n;
    w->home = t->be;
    mr_status status = s->is_mapped ? MR_OK : ops->weight_bytes(t->be, s->type, s->k, s->n, &w->bytes, err);
    if (status == MR_OK)
        status = s->is_mapped ? ops->buffer_wrap(t->be, s->rows, w->bytes, &t->matrix, err)
                              : ops->buffer_create(t->be, w->bytes, &t->matrix, err);
    w->buffer = t->matrix;
    if (status == MR_OK && !s->is_mapped)
        status = ops->weight_load(t->be, w, s->rows, &fence, err);
    return status == MR_OK ? ops->wait(t->be, fence, MR_NEVER, err) : status;
}

static mr_status trial_init(trial *t, const mr_product_sample *s, int32_t n_rows, mr_err *err) {
    mr_tensor w;
    mr_graph_stats stats;
    size_t n = (size_t)s->k * (size_t)n_rows;
    t->x = mr_alloc_array(n, sizeof *t->x);
    mr_status status = t->x ? mr_graph_create(n_rows, n_rows, &t->graph, err)
                            : mr_err_set(err, MR_E_NO_MEMORY, "no memory to measure products");
    for (size_t i = 0; status == MR_OK && i < n; i++)
        t->x[i] = (float)(i % 31) - 15.0f;
    if (status == MR_OK)
        status = place_matrix(t, s, &w, err);
    if (status != MR_OK)
        return status;
    int32_t x = mr_graph_input(t->graph, "x", MR_TYPE_F32, s->k, MR_ROWS_STEP);
    mr_graph_output(t->graph, mr_graph_matmul(t->graph, mr_graph_use(t->graph, &w), x, MR_NO_TENSOR, MR_NO_TENSOR));
    status = mr_graph_finish(t->graph, &(mr_backends){.at = {t->be}, .n = 1}, &stats, err);
    if (status == MR_OK)
        status = t->be->ops->buffer_create(t->be, stats.work_bytes[0], &t->work, err);
    if (status == MR_OK)
        status = mr_graph_place(t->graph, &t->work, err);
    return status == MR_OK ? mr_graph_set_rows(t->graph, x, t->x, (size_t)s->k * sizeof *t->x, n_rows, err) : status;
}

static mr_status time_product(void *ctx, mr_backend *be, const mr_product_sample *s, int32_t n_rows,
                              double *out_seconds, mr_err *err) {
    (void)ctx;
    trial t = {.be = be};
    int64_t best_ns = INT64_MAX;
    const mr_run run = {.n_rows = {1, n_rows, n_rows}};
    mr_status status = trial_init(&t, s, n_rows, err);
    int64_t end_ns = mr_clock_now_ns() + ENOUGH_NS;
    for (int i = 0; status == MR_OK && i < MOST_RUNS && (i < LEAST_RUNS || mr_clock_now_ns() < end_ns); i++) {
        int64_t start_ns = mr_clock_now_ns();
        status = mr_graph_run(t.graph, &run, err);
        int64_t ns = mr_clock_now_ns() - start_ns;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    trial_deinit(&t);
    *out_seconds = (double)best_ns / (double)MR_NS_PER_S;
    if (status != MR_E_NO_MEMORY)
        return status;
    *out_seconds = INFINITY; /* a product that cannot be tried counts as slower */
    return MR_OK;
}

int32_t mr_products_types(const mr_weights *weights, mr_type out_types[MR_PRODUCTS_TYPES]) {
    const mr_gguf_tensor *found[MR_PRODUCTS_TYPES + 1];
    int32_t n = 0;
    for (int32_t type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_gguf_tensor *m = mr_weights_largest(weights, (mr_type)type);
        if (!m)
            continue;
        int32_t i = n;
        for (; i > 0 && found[i - 1]->bytes < m->bytes; i--)
            found[i] = found[i - 1];
        found[i] = m;
        n = n < MR_PRODUCTS_TYPES ? n + 1 : n;
    }
    for (int32_t i = 0; i < n; i++)
        out_types[i] = found[i]->type;
    return n;
}

/* Rows of a matrix, as many as make a product of some milliseconds. */
static mr_product_sample sample_of(const mr_gguf_tensor *m, bool is_mapped, int32_t max_rows) {
    int64_t most = MOST_MACS / (m->ne[0] * max_rows);
    int64_t n = most > LEAST_N ? most : LEAST_N;
    return (mr_product_sample){.type = m->type,
                               .k = (int32_t)m->ne[0],
                               .n = (int32_t)(n < m->ne[1] ? n : m->ne[1]),
                               .rows = m->data,
                               .is_mapped = is_mapped};
}

mr_status mr_products_measure(mr_backends *backends, const mr_weights *weights, bool map_weights, int32_t max_rows,
                              mr_err *err) {
    mr_product_sample samples[MR_PRODUCTS_TYPES];
    mr_type types[MR_PRODUCTS_TYPES];
    int32_t n_samples = mr_products_types(weights, types);
    for (int32_t i = 0; i < n_samples; i++)
        samples[i] = sample_of(mr_weights_largest(weights, types[i]), map_weights, max_rows);
    return mr_products_choose(backends, samples, n_samples, max_rows, time_product, NULL, err);
}

/* --- Rates ------------------------------------------------------------------------------------------------------- */

/* Seconds to load the matrix of a trial, or to copy as many bytes of the work buffer back; the longer one. */
static mr_status time_copies(const trial *t, const mr_product_sample *s, const mr_tensor *w, uint8_t *bytes, size_t n,
                             double *out_seconds, mr_err *err) {
    const mr_backend_ops *ops = t->be->ops;
    int64_t best_ns[2] = {INT64_MAX, INT64_MAX};
    mr_status status = MR_OK;
    for (int i = 0; i < 2 * LEAST_RUNS && status == MR_OK; i++) {
        mr_fence fence = 0;
        int64_t start_ns = mr_clock_now_ns();
        status = i % 2 ? ops->get(t->be, t->matrix, 0, bytes, n, &fence, err)
                       : ops->weight_load(t->be, w, s->rows, &fence, err);
        if (status == MR_OK)
            status = ops->wait(t->be, fence, MR_NEVER, err);
        int64_t ns = mr_clock_now_ns() - start_ns;
        best_ns[i % 2] = ns < best_ns[i % 2] ? ns : best_ns[i % 2];
    }
    *out_seconds = (double)(best_ns[0] > best_ns[1] ? best_ns[0] : best_ns[1]) / (double)MR_NS_PER_S;
    return status;
}

/* How fast the rows of a matrix reach the memory of a backend, in bytes of the file. */
static mr_status measure_copies(mr_backend *be, const mr_product_sample *s, double *out_bytes_per_s, mr_err *err) {
    trial t = {.be = be};
    mr_tensor w;
    size_t row_bytes = 0;
    double seconds = 0;
    mr_status status = place_matrix(&t, s, &w, err);
    uint8_t *bytes = status == MR_OK ? mr_alloc(w.bytes) : NULL;
    if (status == MR_OK && !bytes)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory to measure copies");
    if (status == MR_OK)
        status = time_copies(&t, s, &w, bytes, w.bytes, &seconds, err);
    if (status == MR_OK && seconds > 0 && mr_type_bytes(s->type, s->k, &row_bytes))
        *out_bytes_per_s = (double)row_bytes * s->n / seconds;
    mr_free(bytes);
    trial_deinit(&t);
    return status;
}

static mr_status measure_rates(mr_backend *be, const mr_product_sample *s, int32_t n_rows, mr_rates *out, mr_err *err) {
    mr_device_info device;
    mr_product_sample own = *s;
    mr_rates rates = {0};
    double seconds = 0;
    be->ops->describe(be, &device);
    own.is_mapped = s->is_mapped && device.host_addressable;
    mr_status status = time_product(NULL, be, &own, n_rows, &seconds, err);
    if (status == MR_OK && seconds > 0 && isfinite(seconds))
        rates.products_per_s = (double)s->k * s->n * n_rows / seconds;
    if (status == MR_OK && !device.host_addressable)
        status = measure_copies(be, &own, &rates.copied_bytes_per_s, err);
    if (status == MR_E_UNSUPPORTED || status == MR_E_NO_MEMORY) { /* products cannot move there */
        *out = (mr_rates){0};
        return MR_OK;
    }
    *out = rates;
    mr_log_write(MR_LOG_DEBUG, "worker", "%s: %.3g products/s, copies of %.3g bytes/s", device.name,
                 rates.products_per_s, rates.copied_bytes_per_s);
    return status;
}

mr_status mr_products_measure_rates(mr_backends *backends, const mr_weights *weights, bool map_weights,
                                    int32_t max_rows, mr_err *err) {
    mr_type types[MR_PRODUCTS_TYPES];
    mr_status status = MR_OK;
    if (mr_devices_holder(backends) < 0 || mr_products_types(weights, types) == 0)
        return MR_OK;
    const mr_product_sample s = sample_of(mr_weights_largest(weights, types[0]), map_weights, max_rows);
    for (int32_t b = 0; b < backends->n && status == MR_OK; b++)
        status = measure_rates(backends->at[b], &s, max_rows, &backends->rates[b], err);
    return status;
}
