/* backends/digest/digest.c - computes a digest and compares two. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/digest/digest.h"

#include <inttypes.h>
#include <stdio.h>

#include "backends/digest/digest_case.h"
#include "engine/base/fmath.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"

enum { MAX_NAMED = 4 }; /* parts in a text */

/* Most values are in [-2, 2). Some are zeros of both signs, denormals, and numbers whose products are denormal. */
static float pool_value(int32_t bits, uint32_t kind) {
    float x = (float)bits * 0x1p-30f;
    switch (kind % 64) {
    case 0:
        return x < 0 ? -0.0f : 0.0f;
    case 1:
        return mr_bits_f32((uint32_t)bits & 0x807fffffu);
    case 2:
        return x * 0x1p-20f; /* a subnormal half */
    case 3:
        return x * 0x1p-70f;
    default:
        return x;
    }
}

/* Rule F1, on the calling thread. */
static void digest_functions(trial *t) {
    case_part(t, MR_DIGEST_FUNCTIONS, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 256; i++) {
        float values[] = {mr_expf((float)(i - 128) * 0.75f + t->pool[i]), (float)mr_log(1.0 + 250.0 * (double)i),
                          mr_tanhf(t->pool[i] * 4.0f)};
        case_add_floats(t, values, CASE_COUNT(values));
    }
}

/* Allocates what a trial needs. The caller frees it with case_deinit, after an error, too. */
static void case_init(trial *t) {
    mr_device_info info;
    t->be->ops->describe(t->be, &info);
    t->alignment = info.alignment;
    t->image = mr_alloc(CASE_IMAGE_BYTES);
    t->result = mr_alloc(CASE_RESULT_BYTES);
    t->status = t->image && t->result
                    ? t->be->ops->buffer_create(t->be, CASE_IMAGE_BYTES + CASE_KEPT_BYTES, &t->buffer, t->err)
                    : mr_err_set(t->err, MR_E_NO_MEMORY, "no memory for the digest of a backend");
    for (uint32_t i = 0; i < CASE_POOL; i += 2) {
        mr_philox bits = mr_philox4x32((mr_philox){{i}}, CASE_SEED, 0);
        t->pool[i] = pool_value((int32_t)bits.word[0], bits.word[1]);
        t->pool[i + 1] = pool_value((int32_t)bits.word[2], bits.word[3]);
    }
}

static void case_deinit(trial *t) {
    t->be->ops->buffer_destroy(t->be, t->buffer);
    mr_free(t->image);
    mr_free(t->result);
    mr_free(t);
}

/* Leaves out the parts to which nothing was added. */
static void drop_empty(mr_digest *d) {
    int32_t n = d->n;
    d->n = 0;
    for (int32_t i = 0; i < n; i++)
        if (d->parts[i].bits != MR_NUMERICS_VERSION)
            d->parts[d->n++] = d->parts[i];
}

mr_status mr_digest_compute(mr_backend *be, const mr_backend *beside, mr_digest *out, mr_err *err) {
    trial *t = mr_alloc(sizeof *t);
    mr_digest made = {.n = 0};
    if (!t)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the digest of a backend");
    *t = (trial){.be = be, .beside = beside, .digest = &made, .err = err};
    mr_thread_set_denormals_flushed();
    case_init(t);
    if (t->status == MR_OK) {
        digest_functions(t);
        digest_rows(t);
        digest_products(t);
        digest_attention(t);
        digest_state(t);
        digest_sparse(t);
    }
    mr_status status = t->status;
    case_deinit(t);
    drop_empty(&made);
    if (status == MR_OK)
        *out = made;
    return status;
}

static const mr_digest_part *find(const mr_digest *d, const mr_digest_part *like) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->parts[i].op == like->op && d->parts[i].type == like->type)
            return &d->parts[i];
    return NULL;
}

int32_t mr_digest_compare(const mr_digest *a, const mr_digest *b, char *out, size_t bytes) {
    int32_t n = 0;
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; i < a->n; i++) {
        const mr_digest_part *p = &a->parts[i], *other = find(b, p);
        bool has_type = p->type != MR_DIGEST_NO_TYPE;
        if (!other || other->bits == p->bits || ++n > MAX_NAMED || used >= bytes)
            continue;
        int len = snprintf(out + used, bytes - used, "%s%s%s%s", used ? ", " : "",
                           p->op == MR_DIGEST_FUNCTIONS ? "functions" : mr_op_name((mr_op)p->op), has_type ? " " : "",
                           has_type ? mr_type_name((mr_type)p->type) : "");
        used += len < 0 ? 0 : (size_t)len;
    }
    if (n > MAX_NAMED && used < bytes)
        snprintf(out + used, bytes - used, " and %" PRId32 " more", n - MAX_NAMED);
    return n;
}

uint64_t mr_digest_sum(const mr_digest *d) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < d->n; i++) {
        sum = (sum ^ d->parts[i].bits) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    return sum;
}
