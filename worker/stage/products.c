/* worker/stage/products.c - the choice, with the timer as an argument, so that tests need no clock. products_measure.c
 * has the real timer. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/products.h"

#include <inttypes.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"

static const int64_t BUDGET_NS = 400 * MR_NS_PER_S / 1000; /* no measurement starts after this time */
static const double WORTHWHILE = 0.95; /* most share of the CPU's time: rows also cross to another set of threads */

/* The next smaller row bucket: worker/stage/stage.c builds buckets of 1, 2, 4 ..., max_rows rows. */
static int32_t next_bucket(int32_t rows) {
    int32_t r = 1;
    while (2 * r < rows)
        r *= 2;
    return r;
}

static void log_times(const mr_backend *be, const mr_product_sample *s, int32_t rows, const double seconds[2]) {
    mr_device_info device;
    be->ops->describe(be, &device);
    mr_log_write(MR_LOG_DEBUG, "worker",
                 "%s products of %" PRId32 " x %" PRId32 " with %" PRId32 " rows: %s %.3f ms, CPU %.3f ms",
                 mr_type_name(s->type), s->n, s->k, rows, device.name, seconds[0] * 1e3, seconds[1] * 1e3);
}

/* The least number of rows from which on at[0] is faster than at[1]. Tries the buckets from max_rows down. */
static mr_status choose_one(mr_backend *const at[2], const mr_product_sample *s, int32_t max_rows, int64_t end_ns,
                            mr_product_timer *timer, void *ctx, int32_t *out, mr_err *err) {
    *out = MR_NO_ROWS;
    for (int32_t rows = max_rows; mr_clock_now_ns() < end_ns; rows = next_bucket(rows)) {
        double seconds[2] = {0};
        mr_status status = MR_OK;
        for (int i = 0; i < 2 && status == MR_OK; i++)
            status = timer(ctx, at[i], s, rows, &seconds[i], err);
        if (status != MR_OK)
            return status;
        log_times(at[0], s, rows, seconds);
        if (seconds[0] > WORTHWHILE * seconds[1])
            break;
        *out = rows;
        if (rows == 1)
            break;
    }
    return MR_OK;
}

void mr_products_leave_all(mr_backends *backends) {
    for (int32_t b = 0; b < backends->n - 1; b++)
        for (int32_t type = 0; type < MR_TYPE_FILE_COUNT; type++)
            backends->min_rows[b][type] = MR_NO_ROWS;
}

mr_status mr_products_choose(mr_backends *backends, const mr_product_sample *samples, int32_t n_samples,
                             int32_t max_rows, mr_product_timer *timer, void *ctx, mr_err *err) {
    int64_t end_ns = mr_clock_now_ns() + BUDGET_NS;
    mr_backend *last = backends->at[backends->n - 1];
    mr_products_leave_all(backends);
    for (int32_t b = 0; b < backends->n - 1; b++) {
        int32_t *min_rows = backends->min_rows[b];
        mr_device_info device;
        backends->at[b]->ops->describe(backends->at[b], &device);
        for (int32_t i = 0; i < n_samples && device.host_addressable; i++) {
            mr_backend *const at[2] = {backends->at[b], last};
            mr_status status =
                choose_one(at, &samples[i], max_rows, end_ns, timer, ctx, &min_rows[samples[i].type], err);
            if (status != MR_OK)
                return status;
            if (min_rows[samples[i].type] != MR_NO_ROWS)
                mr_log_write(MR_LOG_DEBUG, "worker", "%s products of %" PRId32 " rows and more leave the CPU",
                             mr_type_name(samples[i].type), min_rows[samples[i].type]);
        }
    }
    return MR_OK;
}
