/* coordinator/lobby/roll_call_file.c - the model file in the roll call: whether the ranks have the same one, who has
 * which of its parts, and who asks whom for what it lacks. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/lobby/roll_call_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/gguf/gguf_digest.h"

static const int64_t LOOK_NS = 100 * MR_NS_PER_MS;
static const char HINT[] =
    "hint: copy the same file to both, or remove the wrong one: a rank without the file gets its "
    "layers from the others";

mr_status roll_call_note_parts(mr_roll_call *r, int32_t rank, const Millrace__Hello *h, mr_err *err) {
    mr_rank_info *info = &r->infos[rank];
    if (h->n_parts == 0)
        return MR_OK;
    info->parts = mr_alloc_array(h->n_parts, sizeof *info->parts);
    if (!info->parts)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a list of %zu parts", h->n_parts);
    info->n_parts = (int32_t)h->n_parts;
    for (size_t i = 0; i < h->n_parts; i++) {
        const Millrace__FilePart *p = h->parts[i];
        info->parts[i] = (mr_rank_part){.bytes = p->bytes,
                                        .header_bytes = p->header_bytes,
                                        .digest = p->digest,
                                        .n_tensors = p->n_tensors,
                                        .has_root = h->part_roots.len > 0};
        if (h->part_roots.len > 0)
            memcpy(info->parts[i].root, h->part_roots.data + i * MR_FILE_HASH_BYTES, MR_FILE_HASH_BYTES);
    }
    return MR_OK;
}

/* --- Checks ------------------------------------------------------------------------------------------------------ */

static bool has_part(const mr_roll_call *r, int32_t rank, int32_t idx) {
    return idx < r->infos[rank].n_parts && r->infos[rank].parts[idx].bytes > 0;
}

/* The first rank that has the part; n_ranks: none. */
static int32_t first_with(const mr_roll_call *r, int32_t idx) {
    int32_t rank = 0;
    while (rank < r->n_ranks && !has_part(r, rank, idx))
        rank++;
    return rank;
}

/* "part 2 of its model file /data/model-00001-of-00004.gguf", or "its model file /data/model.gguf". */
static const char *part_text(const mr_rank_info *info, int32_t idx, char out[128]) {
    if (info->n_parts > 1)
        snprintf(out, 128, "part %" PRId32 " of its model file %.60s", idx + 1, info->model_path);
    else
        snprintf(out, 128, "its model file %.60s", info->model_path);
    return out;
}

/* Compares the hashes of all bytes of a part, where the ranks verify weights. */
static mr_status check_root(const mr_rank_info *a, const mr_rank_info *b, int32_t idx, const char *name_a,
                            mr_err *err) {
    const mr_rank_part *p = &a->parts[idx], *q = &b->parts[idx];
    char part[128];
    if (p->has_root != q->has_root)
        return mr_err_set(err, MR_E_INVALID,
                          "it %s its model file, and %s %s; hint: give --verify-weights to all ranks or to none",
                          q->has_root ? "verifies" : "does not verify", name_a, p->has_root ? "does" : "does not");
    if (!p->has_root || memcmp(p->root, q->root, sizeof p->root) == 0)
        return MR_OK;
    return mr_err_set(err, MR_E_FORMAT,
                      "%s has other bytes than that of %s, %.60s, with the same size and header: SHA-256 "
                      "%02x%02x%02x%02x... and %02x%02x%02x%02x...; %s",
                      part_text(b, idx, part), name_a, a->model_path, q->root[0], q->root[1], q->root[2], q->root[3],
                      p->root[0], p->root[1], p->root[2], p->root[3], HINT);
}

/* Compares a part of a rank with that of the first rank that has it, and with what rank 0's first part says. */
static mr_status check_part(const mr_roll_call *r, int32_t rank, int32_t idx, mr_err *err) {
    int32_t first = first_with(r, idx);
    const mr_rank_info *a = &r->infos[first], *b = &r->infos[rank];
    const mr_rank_part *p = &a->parts[idx], *q = &b->parts[idx], *zero = &r->infos[0].parts[0];
    char name[MR_CHANNEL_NAME_BYTES], part[128];
    mr_channel_peer_name(r->channel, first, name);
    if (p->bytes != q->bytes)
        return mr_err_set(err, MR_E_FORMAT, "%s has %" PRIu64 " bytes, that of %s, %.60s, has %" PRIu64 "; %s",
                          part_text(b, idx, part), q->bytes, name, a->model_path, p->bytes, HINT);
    if (p->digest != q->digest || p->header_bytes != q->header_bytes)
        return mr_err_set(err, MR_E_FORMAT, "%s is another one than that of %s, %.60s, with the same size; %s",
                          part_text(b, idx, part), name, a->model_path, HINT);
    if (q->n_tensors > 0 && zero->n_tensors > 0 && q->n_tensors != zero->n_tensors)
        return mr_err_set(err, MR_E_FORMAT,
                          "%s says that the model has %" PRIu32 " tensors, the first part of rank 0 says %" PRIu32
                          "; hint: one of the parts is of another model",
                          part_text(b, idx, part), q->n_tensors, zero->n_tensors);
    return check_root(a, b, idx, name, err);
}

mr_status roll_call_check_parts(const mr_roll_call *r, int32_t rank, mr_err *err) {
    const mr_rank_info *a = &r->infos[0], *b = &r->infos[rank];
    mr_status status = MR_OK;
    if (!has_part(r, 0, 0))
        return mr_err_set(err, MR_E_NOT_FOUND,
                          "it has no model file %s; hint: rank 0 needs the file, or the first of its parts, the others "
                          "do not",
                          a->model_path);
    if (b->n_parts > 0 && b->n_parts != a->n_parts)
        return mr_err_set(err, MR_E_FORMAT,
                          "its model file %.60s is in %" PRId32 " parts by its name, that of rank 0 in %" PRId32,
                          b->model_path, b->n_parts, a->n_parts);
    for (int32_t i = 0; i < b->n_parts && status == MR_OK; i++)
        if (has_part(r, rank, i))
            status = check_part(r, rank, i, err);
    return status;
}

mr_status roll_call_join_parts(mr_roll_call *r, mr_err *err) {
    int32_t n = r->infos[0].n_parts;
    r->parts = mr_alloc_array((size_t)n, sizeof *r->parts);
    if (!r->parts)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a list of %" PRId32 " parts", n);
    r->n_parts = n;
    for (int32_t i = 0; i < n; i++) {
        int32_t rank = first_with(r, i);
        if (rank == r->n_ranks)
            return mr_err_set(err, MR_E_NOT_FOUND,
                              "no rank has part %" PRId32 " of the model's %" PRId32
                              ", %.160s; hint: copy the part to one of the hosts, into the same folder",
                              i + 1, n, r->infos[0].model_path);
        r->parts[i] = r->infos[rank].parts[i];
    }
    return MR_OK;
}

int32_t mr_roll_call_file(const mr_roll_call *r, const mr_rank_part **out_parts, uint64_t *out_digest) {
    uint64_t digests[MR_MAX_FILE_PARTS];
    for (int32_t i = 0; i < r->n_parts; i++)
        digests[i] = r->parts[i].digest;
    *out_parts = r->parts;
    *out_digest = mr_gguf_join_digests(digests, r->n_parts);
    return r->n_parts;
}

/* Writes the roots of all parts to out [n_parts * MR_FILE_HASH_BYTES]. false: the ranks do not verify weights. */
static bool join_roots(const mr_roll_call *r, uint8_t *out) {
    for (int32_t i = 0; i < r->n_parts; i++) {
        if (!r->parts[i].has_root)
            return false;
        memcpy(out + i * MR_FILE_HASH_BYTES, r->parts[i].root, MR_FILE_HASH_BYTES);
    }
    return r->n_parts > 0;
}

bool mr_roll_call_weights_root(const mr_roll_call *r, mr_weights_root *out) {
    uint8_t roots[MR_MAX_FILE_PARTS * MR_FILE_HASH_BYTES];
    bool are_known = join_roots(r, roots);
    if (are_known)
        mr_weights_root_join(roots, (size_t)r->n_parts, out);
    return are_known;
}

/* --- Who asks whom ----------------------------------------------------------------------------------------------- */

typedef struct sources {
    uint32_t ranks[MR_MAX_PART_SOURCES];
    size_t n; /* 0: the rank has the part */
} sources;

/* Who asks whom: sources [n_ranks][n_parts]; asks [n_ranks][n_ranks]: the first rank asks the second for something. */
typedef struct sharing {
    sources *sources;
    bool *asks;
    uint32_t *askers;            /* [n_ranks] of the message */
    Millrace__FilePart *parts;   /* [n_parts] of the message */
    Millrace__FilePart **points; /* [n_parts], to parts */
    uint8_t *roots;              /* [n_parts * MR_FILE_HASH_BYTES] of the message */
    bool has_roots;
} sharing;

static void sharing_deinit(sharing *s) {
    mr_free(s->sources);
    mr_free(s->asks);
    mr_free(s->askers);
    mr_free(s->parts);
    mr_free(s->points);
    mr_free(s->roots);
}

static mr_status sharing_init(sharing *s, const mr_roll_call *r, mr_err *err) {
    size_t n_ranks = (size_t)r->n_ranks, n_parts = (size_t)r->n_parts;
    *s = (sharing){.sources = mr_alloc_array(n_ranks * n_parts, sizeof *s->sources),
                   .asks = mr_alloc_array(n_ranks * n_ranks, sizeof *s->asks),
                   .askers = mr_alloc_array(n_ranks, sizeof *s->askers),
                   .parts = mr_alloc_array(n_parts, sizeof *s->parts),
                   .points = mr_alloc_array(n_parts, sizeof(Millrace__FilePart *)),
                   .roots = mr_alloc_array(n_parts, MR_FILE_HASH_BYTES)};
    if (!s->sources || !s->asks || !s->askers || !s->parts || !s->points || !s->roots)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to share a file between %zu ranks", n_ranks);
    s->has_roots = join_roots(r, s->roots);
    return MR_OK;
}

/* Of the ranks without a part, number k asks up to MR_MAX_PART_SOURCES consecutive ones of those with it, from the k-th
 * on, so that all sources get equal work. */
static void share_part(sharing *s, const mr_roll_call *r, int32_t idx) {
    uint32_t *with = s->askers; /* filled anew for each message */
    uint32_t n_with = 0, k = 0;
    for (int32_t i = 0; i < r->n_ranks; i++)
        if (has_part(r, i, idx))
            with[n_with++] = (uint32_t)i;
    for (int32_t i = 0; i < r->n_ranks; i++) {
        if (!r->infos[i].here)
            continue;
        sources *to = &s->sources[(size_t)i * (size_t)r->n_parts + (size_t)idx];
        if (has_part(r, i, idx))
            continue;
        for (; to->n < n_with && to->n < MR_MAX_PART_SOURCES; to->n++) {
            to->ranks[to->n] = with[(k + to->n) % n_with];
            s->asks[(size_t)i * (size_t)r->n_ranks + to->ranks[to->n]] = true;
        }
        k++;
    }
}

/* Tells one rank, if it asks or is asked. *asks: it asks. */
static mr_status tell(sharing *s, mr_roll_call *r, int32_t rank, bool *asks, mr_err *err) {
    Millrace__ShareFile share = MILLRACE__SHARE_FILE__INIT;
    const mr_rank_part *parts;
    *asks = false;
    share.parts = s->points;
    share.n_parts = (size_t)mr_roll_call_file(r, &parts, &share.file_digest);
    for (size_t i = 0; i < share.n_parts; i++) {
        sources *from = &s->sources[(size_t)rank * share.n_parts + i];
        s->points[i] = &s->parts[i];
        millrace__file_part__init(&s->parts[i]);
        s->parts[i].bytes = parts[i].bytes;
        s->parts[i].header_bytes = parts[i].header_bytes;
        s->parts[i].n_sources = from->n;
        s->parts[i].sources = from->ranks;
        *asks = *asks || from->n > 0;
    }
    if (s->has_roots)
        share.part_roots = (ProtobufCBinaryData){.len = share.n_parts * MR_FILE_HASH_BYTES, .data = s->roots};
    share.askers = s->askers;
    for (int32_t i = 0; i < r->n_ranks; i++)
        if (s->asks[(size_t)i * (size_t)r->n_ranks + (size_t)rank])
            share.askers[share.n_askers++] = (uint32_t)i;
    return *asks || share.n_askers > 0 ? roll_call_send(r, rank, &share.base, err) : MR_OK;
}

void mr_roll_call_lose(mr_roll_call *r, int32_t rank) {
    r->infos[rank].here = false;
    r->infos[rank].n_parts = 0;
}

mr_status mr_roll_call_share_file(mr_roll_call *r, int32_t *out_n, mr_err *err) {
    sharing s;
    int32_t n = 0;
    mr_status status = sharing_init(&s, r, err);
    for (int32_t i = 0; i < r->n_parts && status == MR_OK; i++) {
        share_part(&s, r, i);
        if (first_with(r, i) == r->n_ranks)
            status =
                mr_err_set(err, MR_E_NOT_FOUND, "no rank is left that has part %" PRId32 " of the model file", i + 1);
    }
    for (int32_t i = 0; i < r->n_ranks && status == MR_OK; i++) {
        bool asks;
        if (!r->infos[i].here)
            continue;
        status = tell(&s, r, i, &asks, err);
        n += status == MR_OK && asks;
    }
    sharing_deinit(&s);
    if (status == MR_OK)
        *out_n = n;
    return status;
}

mr_status mr_roll_call_fetch_headers(mr_roll_call *r, bool (*goes_on)(void), mr_err *err) {
    Millrace__FetchHeaders wish = MILLRACE__FETCH_HEADERS__INIT;
    Millrace__Report *report = NULL;
    char name[MR_CHANNEL_NAME_BYTES];
    mr_status status = roll_call_send(r, 0, &wish.base, err);
    while (status == MR_OK && !report) {
        status = roll_call_take(r, 0, MILLRACE__REPORT__BODY_HEADERS, &report, err);
        if (status == MR_OK && !report && !goes_on())
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
        if (status == MR_OK && !report)
            status = mr_channel_wait(r->channel, mr_clock_now_ns() + LOOK_NS, err);
    }
    if (status == MR_OK && report->headers->status != 0)
        return mr_err_set(err, (mr_status)report->headers->status, "%s: %s", mr_channel_peer_name(r->channel, 0, name),
                          report->headers->text);
    return status;
}
