// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/part_roots.h"

#include <string.h>

static bool is_known(const uint8_t *root) {
    static const uint8_t none[MR_FILE_HASH_BYTES];
    return memcmp(root, none, sizeof none) != 0;
}

void mr_part_roots_note_own(mr_part_roots *r, const Millrace__Hello *hello) {
    if (hello->part_roots.len == 0)
        return;
    r->n_parts = hello->n_parts;
    memcpy(r->bytes, hello->part_roots.data, hello->part_roots.len);
}

mr_status mr_part_roots_note_shared(mr_part_roots *r, const Millrace__ShareFile *message, mr_err *err) {
    if (message->part_roots.len == 0)
        return MR_OK;
    for (size_t i = 0; i < message->n_parts; i++) {
        uint8_t *own = r->bytes + i * MR_FILE_HASH_BYTES;
        const uint8_t *told = message->part_roots.data + i * MR_FILE_HASH_BYTES;
        if (is_known(own) && memcmp(own, told, MR_FILE_HASH_BYTES) != 0)
            return mr_err_set(err, MR_E_FORMAT,
                              "part %zu of the model has other bytes here than the job wants: SHA-256 %02x%02x... and "
                              "%02x%02x...; hint: copy the same file to both, or remove the wrong one",
                              i + 1, own[0], own[1], told[0], told[1]);
        memcpy(own, told, MR_FILE_HASH_BYTES);
    }
    r->n_parts = message->n_parts;
    return MR_OK;
}

bool mr_part_roots_join(const mr_part_roots *r, mr_weights_root *out) {
    *out = (mr_weights_root){{0}};
    for (size_t i = 0; i < r->n_parts; i++)
        if (!is_known(r->bytes + i * MR_FILE_HASH_BYTES))
            return false;
    if (r->n_parts > 0)
        mr_weights_root_join(r->bytes, r->n_parts, out);
    return r->n_parts > 0;
}
