/* proto/lifeline_proof.c - how a rank and rank 0 prove to each other that they know the key of the lifelines: challenge
 * and response, by HMAC-SHA-256 over all that was said before. Neither side sends anything from which the key, or a
 * proof for another connection, follows. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/le.h"
#include "proto/lifeline_internal.h"

enum { AT_RANK = LIFELINE_MAGIC_BYTES, AT_NONCE = AT_RANK + 4 };

mr_status lifeline_random(uint8_t *out, size_t n, mr_err *err) {
    if (getrandom(out, n, 0) == (ssize_t)n)
        return MR_OK;
    return mr_err_set(err, MR_E_IO, "the system gives no random bytes: %s", strerror(errno));
}

mr_secret lifeline_key(const mr_secret *secret, const uint8_t *token) {
    const mr_secret none = {0};
    return mr_secret_derive(secret ? secret : &none, "millrace lifeline", token, LIFELINE_TOKEN_BYTES);
}

void lifeline_hello_write(int32_t rank, const uint8_t *nonce, uint8_t *out_hello) {
    memcpy(out_hello, LIFELINE_MAGIC, LIFELINE_MAGIC_BYTES);
    mr_store_le32(out_hello + AT_RANK, (uint32_t)rank);
    memcpy(out_hello + AT_NONCE, nonce, LIFELINE_NONCE_BYTES);
}

int32_t lifeline_hello_read(const uint8_t *hello, int32_t n_ranks) {
    uint32_t rank = mr_load_le32(hello + AT_RANK);
    if (memcmp(hello, LIFELINE_MAGIC, LIFELINE_MAGIC_BYTES) != 0)
        return -1;
    return rank >= 1 && rank < (uint32_t)n_ranks ? (int32_t)rank : -1;
}

void lifeline_prove(const mr_secret *key, lifeline_side side, const uint8_t *hello, const uint8_t *challenge,
                    uint8_t *out_proof) {
    uint8_t said[LIFELINE_HELLO_BYTES + LIFELINE_NONCE_BYTES];
    memcpy(said, hello, LIFELINE_HELLO_BYTES);
    memcpy(said + LIFELINE_HELLO_BYTES, challenge, LIFELINE_NONCE_BYTES);
    const mr_secret proof = mr_secret_derive(key, side == LIFELINE_RANK ? "the rank" : "rank 0", said, sizeof said);
    memcpy(out_proof, proof.bytes, LIFELINE_PROOF_BYTES);
}

bool lifeline_proves(const mr_secret *key, lifeline_side side, const uint8_t *hello, const uint8_t *challenge,
                     const uint8_t *proof) {
    uint8_t right[LIFELINE_PROOF_BYTES];
    lifeline_prove(key, side, hello, challenge, right);
    return mr_secret_same_bytes(proof, right, sizeof right);
}
