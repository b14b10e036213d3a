/* proto/lifeline_internal.h - what the files of the lifeline share: the wire format, the address text, the connecting.
 * On the wire, in bytes; integers are little-endian:
 *   hello   a rank to rank 0   magic 8, proof of the ranks 16, rank 4
 *   answer  rank 0 to a rank   magic 8, proof of rank 0 16
 *   then both ways, every beat: 'h'; at the end: 'b'
 * The token is the two proofs, drawn independently: a wrong host that was told one still cannot pass for rank 0.
 * Threads: functions without state. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIFELINE_INTERNAL_H
#define MR_PROTO_LIFELINE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "proto/lifeline.h"

enum {
    LIFELINE_MAGIC_BYTES = 8,
    LIFELINE_PROOF_BYTES = 16,
    LIFELINE_TOKEN_BYTES = 2 * LIFELINE_PROOF_BYTES, /* proof of the ranks, proof of rank 0 */
    LIFELINE_HELLO_BYTES = LIFELINE_MAGIC_BYTES + LIFELINE_PROOF_BYTES + 4,
    LIFELINE_ANSWER_BYTES = LIFELINE_MAGIC_BYTES + LIFELINE_PROOF_BYTES,
    LIFELINE_MAX_HOSTS = 16,
};

/* Ends in the version. */
#define LIFELINE_MAGIC "MRLIFE\x01"

/* Everything is timed in beats of the own thread, so that a process that was stopped accuses nobody. */
typedef struct lifeline_config {
    mr_lifeline_lost *lost;
    void *ctx;
    int64_t beat_ns;      /* between two signs of life */
    int32_t silent_beats; /* until a peer is lost, or a client that says no hello is dropped */
} lifeline_config;

/* As the public functions, at any pace. */
MR_MUST_USE mr_status lifeline_listen(int32_t n_ranks, const lifeline_config *config, mr_lifeline **out, mr_err *err);
MR_MUST_USE mr_status lifeline_connect(const char *address, int32_t self_rank, int64_t deadline_ns,
                                       const lifeline_config *config, mr_lifeline **out, mr_err *err);

/* Where rank 0 may be found. */
typedef struct lifeline_places {
    uint8_t token[LIFELINE_TOKEN_BYTES];
    int n_hosts;
    struct sockaddr_storage hosts[LIFELINE_MAX_HOSTS];
} lifeline_places;

/* The text "HEX host:port [host]:port" for the interfaces of this machine; addresses that do not fit are left out.
 * family: AF_INET leaves IPv6 out. MR_E_IO: no interface is up. */
MR_MUST_USE mr_status lifeline_address_write(const uint8_t *token, int family, uint16_t port,
                                             char out_text[MR_LIFELINE_ADDRESS_BYTES], mr_err *err);
/* MR_E_PROTOCOL: malformed. */
MR_MUST_USE mr_status lifeline_address_read(const char *text, lifeline_places *out, mr_err *err);

/* Connects to rank 0 as rank self_rank: the socket on which it has answered, not blocking. Errors as
 * mr_lifeline_connect. */
MR_MUST_USE mr_status lifeline_race(const lifeline_places *places, int32_t self_rank, int64_t deadline_ns, int *out_fd,
                                    mr_err *err);

void lifeline_hello_write(const uint8_t *token, int32_t rank, uint8_t out_hello[LIFELINE_HELLO_BYTES]);
/* -1: the magic or the proof is wrong, or the rank is outside 1 to n_ranks - 1. */
int32_t lifeline_hello_read(const uint8_t *token, const uint8_t hello[LIFELINE_HELLO_BYTES], int32_t n_ranks);
void lifeline_answer_write(const uint8_t *token, uint8_t out_answer[LIFELINE_ANSWER_BYTES]);
bool lifeline_answer_check(const uint8_t *token, const uint8_t answer[LIFELINE_ANSWER_BYTES]);

/* For poll(): milliseconds until deadline_ns, rounded up, an hour at most. */
int lifeline_wait_ms(int64_t deadline_ns);
/* Closes *fd where it is open, and leaves -1. */
void lifeline_fd_close(int *fd);

#endif
