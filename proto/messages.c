/* proto/messages.c - protobuf-c with memory from the caller's arena, and the size that this arena needs. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/messages.h"

#include <stdbool.h>
#include <string.h>

mr_status mr_msg_pack(const ProtobufCMessage *message, uint8_t *dst, size_t capacity, size_t *out_bytes, mr_err *err) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > capacity)
        return mr_err_set(err, MR_E_TOO_LONG, "%s message of %zu bytes does not fit into %zu",
                          message->descriptor->short_name, bytes, capacity);
    *out_bytes = protobuf_c_message_pack(message, dst);
    return MR_OK;
}

/* The oneof case of `outer` for messages of the type of `body`. */
static int case_of(const ProtobufCMessageDescriptor *outer, const ProtobufCMessage *body) {
    unsigned i = 0;
    while (i < outer->n_fields && outer->fields[i].descriptor != body->descriptor)
        i++;
    MR_ASSERT(i < outer->n_fields);
    return (int)outer->fields[i].id;
}

/* All members of the union are pointers to messages, so any member can be set. */
Millrace__Control mr_msg_control_of(ProtobufCMessage *body) {
    Millrace__Control m = MILLRACE__CONTROL__INIT;
    m.body_case = (Millrace__Control__BodyCase)case_of(&millrace__control__descriptor, body);
    m.plan = (Millrace__Plan *)body;
    return m;
}

Millrace__Report mr_msg_report_of(ProtobufCMessage *body) {
    Millrace__Report m = MILLRACE__REPORT__INIT;
    m.body_case = (Millrace__Report__BodyCase)case_of(&millrace__report__descriptor, body);
    m.ready = (Millrace__Ready *)body;
    return m;
}

/* Arena bytes of n items of a repeated message field: the items, the pointers to them, and the notes of the unpacker,
 * which grow by doubling (a field uses 32 bytes; 40 are reckoned). */
static size_t items_bytes(size_t n, size_t item_bytes) {
    const size_t align = 16, note = 40;
    return n * (item_bytes + align + sizeof(void *)) + (2 * n + 64) * note;
}

size_t mr_msg_arena_bytes(const mr_msg_limits *limits) {
    const size_t fixed = 8192; /* the arena itself, the outer messages, alignment */
    size_t rows = limits->max_rows, context = limits->max_context;
    size_t plan = items_bytes(MR_MAX_STAGES, sizeof(Millrace__StageRange));
    size_t parts = items_bytes(MR_MAX_FILE_PARTS, sizeof(Millrace__FilePart) + 32 + MR_FILE_HASH_BYTES) +
                   MR_MAX_STAGES * sizeof(uint32_t) + MR_MAX_DIGEST_PARTS * (sizeof(uint32_t) + sizeof(uint64_t));
    size_t open = (context + mr_msg_table_entries(limits)) * sizeof(uint32_t) +
                  MR_MAX_LOGIT_BIASES * (sizeof(uint32_t) + sizeof(float)) +
                  (MR_MAX_DRY_BREAKERS + MR_MAX_LATE_IDS + MR_MAX_BAD_WORDS) * sizeof(uint32_t) + MR_MAX_GRAMMAR_BYTES;
    size_t top_bytes = MR_MAX_TOP_LOGPROBS * (sizeof(uint32_t) + sizeof(float)) + 32;
    size_t tokens = items_bytes(rows, sizeof(Millrace__Token) + top_bytes);
    /* A run has up to eight fields, whose notes fit the stack of the unpacker, and two arrays. */
    size_t copies = 2 * (size_t)limits->max_sequences;
    size_t step = items_bytes(rows, sizeof(Millrace__Run) + 32) + (2 * rows + copies) * sizeof(uint32_t);
    size_t most = MR_MAX_REPORT_BYTES;
    most = most > plan ? most : plan;
    most = most > parts ? most : parts;
    most = most > open ? most : open;
    most = most > tokens ? most : tokens;
    most = most > step ? most : step;
    return fixed + most;
}

/* The allocator of protobuf-c. */
typedef struct arena_user {
    mr_arena *arena;
    bool refused; /* the arena was full */
} arena_user;

static void *arena_user_alloc(void *data, size_t bytes) {
    arena_user *user = data;
    void *p = mr_arena_alloc(user->arena, bytes);
    user->refused = user->refused || !p;
    return p;
}

static void arena_user_free(void *data, void *p) {
    (void)data;
    (void)p;
}

typedef struct packed {
    const uint8_t *data;
    size_t bytes, max_bytes;
    const ProtobufCMessageDescriptor *descriptor;
} packed;

/* Unpacks without checks; NULL with err set. */
static ProtobufCMessage *unpack(const packed *from, mr_arena *arena, mr_err *err) {
    arena_user user = {.arena = arena};
    ProtobufCAllocator allocator = {.alloc = arena_user_alloc, .free = arena_user_free, .allocator_data = &user};
    const char *name = from->descriptor->short_name;
    mr_arena_reset(arena);
    if (from->bytes > from->max_bytes) {
        mr_err_set(err, MR_E_PROTOCOL, "%s message has %zu bytes, more than %zu", name, from->bytes, from->max_bytes);
        return NULL;
    }
    ProtobufCMessage *m = protobuf_c_message_unpack(from->descriptor, &allocator, from->bytes, from->data);
    if (m)
        return m;
    if (user.refused)
        mr_err_set(err, MR_E_PROTOCOL, "%s message of %zu bytes needs more than %zu bytes of memory", name, from->bytes,
                   mr_arena_get_stats(arena).held_bytes);
    else
        mr_err_set(err, MR_E_PROTOCOL, "%s message of %zu bytes is malformed", name, from->bytes);
    return NULL;
}

mr_status mr_msg_unpack_control(const uint8_t *data, size_t bytes, const mr_msg_limits *limits, mr_arena *arena,
                                Millrace__Control **out, mr_err *err) {
    const packed from = {data, bytes, mr_msg_control_bytes(limits), &millrace__control__descriptor};
    Millrace__Control *m = (Millrace__Control *)unpack(&from, arena, err);
    if (!m)
        return MR_E_PROTOCOL;
    mr_status status = mr_msg_check_control(m, limits, err);
    if (status == MR_OK)
        *out = m;
    return status;
}

mr_status mr_msg_unpack_tokens(const uint8_t *data, size_t bytes, const mr_msg_limits *limits, mr_arena *arena,
                               Millrace__Tokens **out, mr_err *err) {
    const packed from = {data, bytes, MR_MAX_TOKENS_BYTES, &millrace__tokens__descriptor};
    Millrace__Tokens *m = (Millrace__Tokens *)unpack(&from, arena, err);
    if (!m)
        return MR_E_PROTOCOL;
    mr_status status = mr_msg_check_tokens(m, limits, err);
    if (status == MR_OK)
        *out = m;
    return status;
}

/* Makes a text safe to log: cuts it, and replaces all bytes but printable ASCII. */
static void clean_text(char *text) {
    size_t n = strnlen(text, MR_MAX_ERROR_TEXT);
    if (n == 0)
        return; /* protobuf-c's own empty string, which is constant */
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            text[i] = '?';
    text[n < MR_MAX_ERROR_TEXT ? n : MR_MAX_ERROR_TEXT - 1] = 0;
}

static void clean_texts(ProtobufCMessage *m) {
    for (unsigned i = 0; i < m->descriptor->n_fields; i++)
        if (m->descriptor->fields[i].type == PROTOBUF_C_TYPE_STRING)
            clean_text(*(char **)((char *)m + m->descriptor->fields[i].offset));
}

mr_status mr_msg_unpack_report(const uint8_t *data, size_t bytes, const mr_msg_limits *limits, mr_arena *arena,
                               Millrace__Report **out, mr_err *err) {
    const packed from = {data, bytes, MR_MAX_REPORT_BYTES, &millrace__report__descriptor};
    Millrace__Report *m = (Millrace__Report *)unpack(&from, arena, err);
    if (!m)
        return MR_E_PROTOCOL;
    mr_status status = mr_msg_check_report(m, limits, err);
    if (status != MR_OK)
        return status;
    clean_texts((ProtobufCMessage *)m->ready);
    if (m->body_case == MILLRACE__REPORT__BODY_FACTS && m->facts->device)
        clean_texts(&m->facts->device->base);
    *out = m;
    return MR_OK;
}

mr_status mr_msg_unpack_link_setup(const uint8_t *data, size_t bytes, mr_arena *arena, Millrace__LinkSetup **out,
                                   mr_err *err) {
    const packed from = {data, bytes, MR_MAX_LINK_SETUP_BYTES, &millrace__link_setup__descriptor};
    Millrace__LinkSetup *m = (Millrace__LinkSetup *)unpack(&from, arena, err);
    if (!m)
        return MR_E_PROTOCOL;
    clean_text(m->text);
    mr_status status = mr_msg_check_link_setup(m, err);
    if (status == MR_OK)
        *out = m;
    return status;
}

mr_status mr_msg_unpack_file_request(const uint8_t *data, size_t bytes, uint64_t n_file_blocks, mr_arena *arena,
                                     Millrace__FileRequest **out, mr_err *err) {
    const packed from = {data, bytes, MR_MAX_FILE_REQUEST_BYTES, &millrace__file_request__descriptor};
    Millrace__FileRequest *m = (Millrace__FileRequest *)unpack(&from, arena, err);
    if (!m)
        return MR_E_PROTOCOL;
    mr_status status = mr_msg_check_file_request(m, n_file_blocks, err);
    if (status == MR_OK)
        *out = m;
    return status;
}
