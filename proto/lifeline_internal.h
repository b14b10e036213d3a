/* proto/lifeline_internal.h - internal to lifeline*.c: the wire format, the address text, connecting.
 * On the wire, in bytes; integers are little-endian:
 *   hello   a rank to rank 0   magic 8, proof of the ranks 16, rank 4
 *   answer  rank 0 to a rank   magic 8, proof of rank 0 16
 *   then both ways, every beat: 'h'; at the end: 'b'
 * The token consists of the two proofs, which are independent random numbers. A wrong host that has received the proof
 * of the ranks still cannot pass for rank 0.
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
    LIFELINE_ANSWER_MS = 1000, /* a host that acknowledges nothing for this time is lost */
};

/* The last byte of the text is the version. */
#define LIFELINE_MAGIC "MRLIFE\x01"

/* All times are counted in beats of the own thread. A process that was stopped counts no beats, so it does not take its
 * peers for lost. */
typedef struct lifeline_config {
    mr_lifeline_lost *lost;
    bool (*is_alive)(void *ctx); /* false: no sign of life is sent now; NULL: always */
    void *ctx;
    int64_t beat_ns;      /* time between two signs of life */
    int32_t silent_beats; /* silent beats after which a peer is lost, and a client without a hello is disconnected */
} lifeline_config;

/* The public functions with a config. */
MR_MUST_USE mr_status lifeline_listen(int32_t n_ranks, const lifeline_config *config, mr_lifeline **out, mr_err *err);
MR_MUST_USE mr_status lifeline_connect(const char *address, int32_t self_rank, int64_t deadline_ns,
                                       const lifeline_config *config, mr_lifeline **out, mr_err *err);

/* An address text, parsed: the token and the addresses of rank 0. */
typedef struct lifeline_places {
    uint8_t token[LIFELINE_TOKEN_BYTES];
    int n_hosts;
    struct sockaddr_storage hosts[LIFELINE_MAX_HOSTS];
} lifeline_places;

/* Writes the text "HEX host:port [host]:port" for the interfaces of this machine. Addresses that do not fit are left
 * out. family: AF_INET leaves IPv6 out. MR_E_IO: no interface is up. */
MR_MUST_USE mr_status lifeline_address_write(const uint8_t *token, int family, uint16_t port,
                                             char out_text[MR_LIFELINE_ADDRESS_BYTES], mr_err *err);
/* MR_E_PROTOCOL: malformed. */
MR_MUST_USE mr_status lifeline_address_read(const char *text, lifeline_places *out, mr_err *err);

/* Connects to rank 0 as rank self_rank. *out_fd: the non-blocking socket on which rank 0 has answered. Errors as in
 * mr_lifeline_connect. */
MR_MUST_USE mr_status lifeline_race(const lifeline_places *places, int32_t self_rank, int64_t deadline_ns, int *out_fd,
                                    mr_err *err);

void lifeline_hello_write(const uint8_t *token, int32_t rank, uint8_t out_hello[LIFELINE_HELLO_BYTES]);
/* Returns the rank; -1: the magic or the proof is wrong, or the rank is outside 1 to n_ranks - 1. */
int32_t lifeline_hello_read(const uint8_t *token, const uint8_t hello[LIFELINE_HELLO_BYTES], int32_t n_ranks);
void lifeline_answer_write(const uint8_t *token, uint8_t out_answer[LIFELINE_ANSWER_BYTES]);
bool lifeline_answer_check(const uint8_t *token, const uint8_t answer[LIFELINE_ANSWER_BYTES]);

/* For poll(): milliseconds until deadline_ns, rounded up, an hour at most. */
int lifeline_wait_ms(int64_t deadline_ns);
/* Closes *fd if it is open, and sets *fd to -1. */
void lifeline_fd_close(int *fd);

#endif
