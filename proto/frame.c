/* proto/frame.c - writes and checks the header of a frame. No frame is read before its checksum is right. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/frame.h"

#include <inttypes.h>
#include <nettle/umac.h>
#include <stdbool.h>

/* Gives the hash state its size, so that it can lie on the stack. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "proto/limits.h"

enum {
    MAGIC = 0x3146524d, /* "MRF1" */
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KIND = 6,
    AT_EPOCH = 8,
    AT_ROWS = 12,
    AT_STEP = 16,
    AT_TYPE = 24,
    AT_ROW_BYTES = 28,
    AT_PAYLOAD_BYTES = 32,
    AT_COUNTER = 40,
    AT_CHECKSUM = 48,
};
static const uint32_t BY_DEVICE = UINT32_C(1) << 31; /* of the type */

struct mr_frame_key {
    struct umac64_ctx mac;
    uint64_t counter; /* of the next frame; at an end that receives, the least that may come */
    bool has_gaps;
};

/* The key of the MAC is the beginning of a secret that is derived for the link. */
mr_frame_key *mr_frame_key_create(const mr_secret *secret, const mr_frame_link *link) {
    uint8_t name[16];
    mr_frame_key *key = mr_alloc(sizeof *key);
    if (!key)
        return NULL;
    mr_store_le32(name, link->kind);
    mr_store_le32(name + 4, link->epoch);
    mr_store_le32(name + 8, (uint32_t)link->from);
    mr_store_le32(name + 12, (uint32_t)link->to);
    const mr_secret of_link = mr_secret_derive(secret, "millrace link", name, sizeof name);
    umac64_set_key(&key->mac, of_link.bytes);
    key->has_gaps = link->has_gaps;
    return key;
}

void mr_frame_key_destroy(mr_frame_key *key) {
    mr_free(key);
}

void mr_frame_key_begin(mr_frame_key *key) {
    if (key && key->has_gaps)
        key->counter = (uint64_t)mr_clock_now_ns();
}

void mr_frame_key_advance(mr_frame_key *key) {
    if (key)
        key->counter++;
}

/* UMAC-64 of the same bytes as the checksum. */
static uint64_t authenticate(mr_frame_key *key, const uint8_t *buffer, size_t payload_bytes) {
    uint8_t digest[UMAC64_DIGEST_SIZE];
    umac64_set_nonce(&key->mac, sizeof(uint64_t), buffer + AT_COUNTER);
    umac64_update(&key->mac, AT_CHECKSUM, buffer);
    umac64_update(&key->mac, payload_bytes, buffer + MR_FRAME_BYTES);
    umac64_digest(&key->mac, sizeof digest, digest);
    return mr_load_le64(digest);
}

/* XXH3-64 of everything but the checksum's own 8 bytes, or its keyed form. */
static uint64_t checksum(mr_frame_key *key, const uint8_t *buffer, size_t payload_bytes) {
    if (key)
        return authenticate(key, buffer, payload_bytes);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, buffer, AT_CHECKSUM);
    XXH3_64bits_update(&state, buffer + MR_FRAME_BYTES, payload_bytes);
    return XXH3_64bits_digest(&state);
}

void mr_frame_seal_with(const mr_frame *frame, mr_frame_key *key, uint8_t *buffer) {
    mr_store_le32(buffer + AT_MAGIC, MAGIC);
    mr_store_le16(buffer + AT_VERSION, MR_WIRE_VERSION);
    mr_store_le16(buffer + AT_KIND, (uint16_t)frame->kind);
    mr_store_le32(buffer + AT_EPOCH, frame->epoch);
    mr_store_le32(buffer + AT_ROWS, frame->rows);
    mr_store_le64(buffer + AT_STEP, frame->step);
    mr_store_le32(buffer + AT_TYPE, frame->type | (frame->by_device ? BY_DEVICE : 0));
    mr_store_le32(buffer + AT_ROW_BYTES, frame->row_bytes);
    mr_store_le64(buffer + AT_PAYLOAD_BYTES, frame->payload_bytes);
    mr_store_le64(buffer + AT_COUNTER, key ? key->counter : 0);
    mr_store_le64(buffer + AT_CHECKSUM, checksum(key, buffer, (size_t)frame->payload_bytes));
}

void mr_frame_seal(const mr_frame *frame, uint8_t *buffer) {
    mr_frame_seal_with(frame, NULL, buffer);
}

/* Checks magic, version and kind. */
static mr_status check_start(const uint8_t *buffer, size_t bytes, mr_frame_kind expected, mr_err *err) {
    if (bytes < MR_FRAME_BYTES)
        return mr_err_set(err, MR_E_PROTOCOL, "frame of %zu bytes is shorter than its header of %d", bytes,
                          MR_FRAME_BYTES);
    uint32_t magic = mr_load_le32(buffer + AT_MAGIC);
    if (magic != MAGIC)
        return mr_err_set(err, MR_E_PROTOCOL, "frame has magic 0x%08" PRIx32 " instead of 0x%08x", magic, MAGIC);
    unsigned version = mr_load_le16(buffer + AT_VERSION);
    if (version != MR_WIRE_VERSION)
        return mr_err_set(
            err, MR_E_PROTOCOL,
            "frame has wire version %u, this program speaks %d; hint: run the same millrace on every host", version,
            MR_WIRE_VERSION);
    unsigned kind = mr_load_le16(buffer + AT_KIND);
    if (kind != (unsigned)expected)
        return mr_err_set(err, MR_E_PROTOCOL, "frame has kind %u where kind %u belongs", kind, (unsigned)expected);
    return MR_OK;
}

mr_status mr_frame_check_rows(const mr_frame *frame, mr_err *err) {
    if (frame->by_device && (frame->kind != MR_FRAME_ACTIVATIONS || frame->payload_bytes > 0))
        return mr_err_set(err, MR_E_PROTOCOL,
                          "frame of kind %u with a payload of %" PRIu64 " bytes says that its rows go by device",
                          (unsigned)frame->kind, frame->payload_bytes);
    if (frame->kind != MR_FRAME_ACTIVATIONS && frame->kind != MR_FRAME_LOGITS)
        return MR_OK;
    if (frame->rows > MR_MAX_STEP_ROWS)
        return mr_err_set(err, MR_E_PROTOCOL, "frame has %" PRIu32 " rows, more than %d", frame->rows,
                          MR_MAX_STEP_ROWS);
    if (!frame->by_device && (uint64_t)frame->rows * frame->row_bytes != frame->payload_bytes)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "frame of %" PRIu32 " rows of %" PRIu32 " bytes has a payload of %" PRIu64 " bytes",
                          frame->rows, frame->row_bytes, frame->payload_bytes);
    return MR_OK;
}

/* Checks the checksum or the authentication code. */
static mr_status check_sum(mr_frame_key *key, const uint8_t *buffer, size_t bytes, mr_err *err) {
    uint64_t sum = checksum(key, buffer, bytes - MR_FRAME_BYTES), claimed = mr_load_le64(buffer + AT_CHECKSUM);
    if (sum == claimed && !key && mr_load_le64(buffer + AT_COUNTER) != 0)
        return mr_err_set(err, MR_E_PROTOCOL, "frame has counter %" PRIu64 ", but the link has no key",
                          mr_load_le64(buffer + AT_COUNTER));
    if (sum == claimed)
        return MR_OK;
    if (key)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "frame %" PRIu64 " was changed on the way, or comes from somebody without the launch secret",
                          mr_load_le64(buffer + AT_COUNTER));
    return mr_err_set(err, MR_E_PROTOCOL, "frame has checksum 0x%016" PRIx64 " where its bytes give 0x%016" PRIx64,
                      claimed, sum);
}

/* Checks the counter of a frame that is authentic. */
static mr_status check_counter(mr_frame_key *key, uint64_t counter, bool *out_again, mr_err *err) {
    *out_again = counter < key->counter;
    if (*out_again)
        return MR_OK;
    if (counter > key->counter && !key->has_gaps)
        return mr_err_set(err, MR_E_PROTOCOL, "frame %" PRIu64 " has come, but frame %" PRIu64 " is missing", counter,
                          key->counter);
    key->counter = counter + 1;
    return MR_OK;
}

mr_status mr_frame_open(const uint8_t *buffer, size_t bytes, mr_frame_kind expected, mr_frame *out, mr_err *err) {
    bool again;
    return mr_frame_open_with(buffer, bytes, expected, NULL, out, &again, err);
}

mr_status mr_frame_open_with(const uint8_t *buffer, size_t bytes, mr_frame_kind expected, mr_frame_key *key,
                             mr_frame *out, bool *out_again, mr_err *err) {
    *out_again = false;
    mr_status status = check_start(buffer, bytes, expected, err);
    if (status != MR_OK)
        return status;
    mr_frame f = {
        .kind = expected,
        .epoch = mr_load_le32(buffer + AT_EPOCH),
        .step = mr_load_le64(buffer + AT_STEP),
        .rows = mr_load_le32(buffer + AT_ROWS),
        .type = mr_load_le32(buffer + AT_TYPE) & ~BY_DEVICE,
        .by_device = (mr_load_le32(buffer + AT_TYPE) & BY_DEVICE) != 0,
        .row_bytes = mr_load_le32(buffer + AT_ROW_BYTES),
        .payload_bytes = mr_load_le64(buffer + AT_PAYLOAD_BYTES),
    };
    if (f.payload_bytes != bytes - MR_FRAME_BYTES)
        return mr_err_set(err, MR_E_PROTOCOL, "frame of %zu bytes claims a payload of %" PRIu64 " bytes", bytes,
                          f.payload_bytes);
    status = mr_frame_check_rows(&f, err);
    if (status != MR_OK)
        return status;
    status = check_sum(key, buffer, bytes, err);
    if (status == MR_OK && key)
        status = check_counter(key, mr_load_le64(buffer + AT_COUNTER), out_again, err);
    if (status == MR_OK && !*out_again)
        *out = f;
    return status;
}
