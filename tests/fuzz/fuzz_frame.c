/* tests/fuzz/fuzz_frame.c - fuzzes frames and messages of a link, as a faulty peer may send them, with wrong and with
 * right checksums. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "proto/channel_local.h"
#include "proto/limits.h"
#include "proto/link.h"
#include "tests/fuzz/fuzz.h"

enum { SLOTS = 2, PAYLOAD = 256, MAX_REQUESTS = 8, EPOCH = 3 };

/* Opens the bytes as a frame. If the frame is accepted, sealing its fields must give the same bytes. */
static void open_raw(const uint8_t *data, size_t size) {
    for (int kind = MR_FRAME_CONTROL; kind < MR_FRAME_KINDS; kind++) {
        mr_frame f;
        mr_err err = {0};
        if (mr_frame_open(data, size, (mr_frame_kind)kind, &f, &err) != MR_OK) {
            MR_ASSERT(err.status == MR_E_PROTOCOL && err.text[0]);
            continue;
        }
        MR_ASSERT(f.kind == (mr_frame_kind)kind && f.payload_bytes == size - MR_FRAME_BYTES);
        uint8_t *copy = mr_alloc(size);
        MR_ASSERT(copy);
        memcpy(copy, data, size);
        mr_frame_seal(&f, copy);
        MR_ASSERT(memcmp(copy, data, size) == 0);
        mr_free(copy);
    }
}

/* Nobody without the secret makes a frame that a link with a key takes. */
static void open_with_key(const uint8_t *data, size_t size) {
    static const mr_secret secret = {.is_set = true, .bytes = {7}};
    const mr_frame_link link = {.kind = MR_FRAME_CONTROL, .epoch = EPOCH, .to = 1};
    mr_frame_key *key = mr_frame_key_create(&secret, &link);
    MR_ASSERT(key);
    for (int kind = MR_FRAME_CONTROL; kind < MR_FRAME_KINDS; kind++) {
        mr_frame f;
        mr_err err = {0};
        bool again;
        MR_ASSERT(mr_frame_open_with(data, size, (mr_frame_kind)kind, key, &f, &again, &err) == MR_E_PROTOCOL);
        MR_ASSERT(!again && err.text[0]);
    }
    mr_frame_key_destroy(key);
}

/* Opens a frame with right checksums whose fields come from the data. */
static void open_sealed(const uint8_t *data, size_t size) {
    if (size < MR_FRAME_BYTES)
        return;
    mr_frame f = {
        .kind = (mr_frame_kind)mr_load_le16(data),
        .epoch = mr_load_le32(data + 2),
        .step = mr_load_le64(data + 6),
        .rows = mr_load_le32(data + 14),
        .type = mr_load_le32(data + 18) & INT32_MAX,
        .by_device = mr_load_le32(data + 18) > INT32_MAX,
        .row_bytes = mr_load_le32(data + 22),
        .payload_bytes = size - MR_FRAME_BYTES,
    };
    mr_frame got;
    uint8_t *copy = mr_alloc(size);
    MR_ASSERT(copy);
    memcpy(copy, data, size);
    mr_frame_seal(&f, copy);
    mr_status status = mr_frame_open(copy, size, f.kind, &got, NULL);
    MR_ASSERT(status == mr_frame_check_rows(&f, NULL));
    if (status == MR_OK) {
        MR_ASSERT(got.epoch == f.epoch && got.step == f.step && got.rows == f.rows && got.row_bytes == f.row_bytes);
        MR_ASSERT(got.type == f.type && got.by_device == f.by_device);
        MR_ASSERT((f.kind != MR_FRAME_ACTIVATIONS && f.kind != MR_FRAME_LOGITS) ||
                  (got.by_device && size == MR_FRAME_BYTES) ||
                  (uint64_t)got.rows * got.row_bytes == size - MR_FRAME_BYTES);
    }
    mr_free(copy);
}

/* Sends the data as messages of a link. The data also says how long each message is. A valid message that is sent last
 * must arrive. */
static void through_a_link(const uint8_t *data, size_t size) {
    mr_local_hub *hub = NULL;
    mr_channel *a = NULL, *b = NULL;
    mr_inbox *in = NULL;
    mr_err err = {0};
    mr_frame f = {.kind = MR_FRAME_CONTROL, .epoch = EPOCH, .step = 77};
    const uint8_t *payload = NULL;
    uint8_t good[MR_FRAME_BYTES];
    mr_frame_seal(&f, good);
    MR_ASSERT(mr_local_hub_create(2, MAX_REQUESTS, &hub, &err) == MR_OK &&
              mr_local_channel_open(hub, 0, &a, &err) == MR_OK && mr_local_channel_open(hub, 1, &b, &err) == MR_OK &&
              mr_inbox_create(b, 0, MR_LINK_CONTROL, EPOCH, SLOTS, PAYLOAD, &in, &err) == MR_OK);
    for (bool last = false; !last;) {
        size_t bytes = size ? data[0] + (data[0] & 1) * 256u : 0;
        mr_channel_request r = 0;
        mr_completion c = {.done = false};
        last = size == 0;
        data += !last;
        size -= !last;
        bytes = bytes < size ? bytes : size;
        MR_ASSERT(mr_channel_post_send(a, 1, mr_link_tag(MR_LINK_CONTROL, EPOCH), last ? good : data,
                                       last ? sizeof good : bytes, &r, &err) == MR_OK);
        data += bytes;
        size -= bytes;
        mr_status status = mr_inbox_peek(in, &f, &payload, &err);
        MR_ASSERT(status == MR_OK || (status == MR_E_PROTOCOL && !last));
        MR_ASSERT(!last || (payload && f.step == 77 && f.payload_bytes == 0));
        MR_ASSERT(mr_inbox_release(in, &err) == MR_OK);
        MR_ASSERT(mr_channel_test(a, r, &c, &err) == MR_OK && c.done);
    }
    mr_inbox_destroy(in);
    mr_channel_destroy(b);
    mr_channel_destroy(a);
    mr_local_hub_destroy(hub);
}

int mr_fuzz_frame(const uint8_t *data, size_t size) {
    open_raw(data, size);
    open_with_key(data, size);
    open_sealed(data, size);
    through_a_link(data, size);
    return 0;
}
