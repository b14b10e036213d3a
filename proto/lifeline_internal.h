/* proto/lifeline_internal.h - internal to lifeline*.c: the wire format, the address text, connecting.
 * On the wire, in bytes; integers are little-endian:
 *   hello      a rank to rank 0   magic 8, rank 4, random 16
 *   challenge  rank 0 to a rank   random 16
 *   proof      a rank to rank 0   HMAC-SHA-256 32, over hello and challenge
 *   answer     rank 0 to a rank   HMAC-SHA-256 32, over hello and challenge: the rank is admitted
 *   then both ways, every beat: 'h'; at the end: 'b'
 * The key of the HMAC is derived from the secret of the launch and from the token, a random number in the address text.
 * Without a secret, whoever knows the token knows the key.
 * Threads: functions without state. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIFELINE_INTERNAL_H
#define MR_PROTO_LIFELINE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "proto/lifeline.h"
#include "proto/secret.h"

enum {
    LIFELINE_MAGIC_BYTES = 8,
    LIFELINE_NONCE_BYTES = 16,
    LIFELINE_PROOF_BYTES = 32,
    LIFELINE_TOKEN_BYTES = 32,
    LIFELINE_HELLO_BYTES = LIFELINE_MAGIC_BYTES + 4 + LIFELINE_NONCE_BYTES,
    LIFELINE_MAX_HOSTS = 16,
    LIFELINE_ANSWER_MS = 1000, /* a host that acknowledges nothing for this time is lost */
};

/* The last byte of the text is the version. */
#define LIFELINE_MAGIC "MRLIFE\x02"

/* All times are counted in beats of the own thread. A process that was stopped counts no beats, so it does not take its
 * peers for lost. */
typedef struct lifeline_config {
    mr_lifeline_lost *lost;
    bool (*hangs)(void *ctx); /* as in mr_lifeline_wish */
    void *ctx;
    const mr_secret *secret;  /* of the launch, read by listen and connect only; NULL: there is none */
    int64_t beat_ns;          /* time between two signs of life */
    int64_t refused_until_ns; /* as in mr_lifeline_wish */
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

/* Times of mr_clock_now_ns(). */
typedef struct lifeline_limits {
    int64_t deadline_ns;      /* of the whole race */
    int64_t refused_until_ns; /* as in mr_lifeline_wish */
} lifeline_limits;

/* Connects to rank 0 as rank self_rank. *out_fd: the non-blocking socket on which rank 0 has answered. Errors as in
 * mr_lifeline_connect. */
MR_MUST_USE mr_status lifeline_race(const lifeline_places *places, const mr_secret *key, int32_t self_rank,
                                    const lifeline_limits *limits, int *out_fd, mr_err *err);

/* --- lifeline_proof.c --- */

typedef enum lifeline_side { LIFELINE_RANK, LIFELINE_RANK_0 } lifeline_side;

/* MR_E_IO: the system gives no random bytes. */
MR_MUST_USE mr_status lifeline_random(uint8_t *out, size_t n, mr_err *err);
/* The key of all lifelines of a job. secret NULL: none. */
mr_secret lifeline_key(const mr_secret *secret, const uint8_t *token);
/* nonce: [LIFELINE_NONCE_BYTES], random. */
void lifeline_hello_write(int32_t rank, const uint8_t *nonce, uint8_t *out_hello);
/* Returns the rank; -1: the magic is wrong, or the rank is outside 1 to n_ranks - 1. */
int32_t lifeline_hello_read(const uint8_t *hello, int32_t n_ranks);
/* Writes the proof of one side for one connection: [LIFELINE_PROOF_BYTES]. */
void lifeline_prove(const mr_secret *key, lifeline_side side, const uint8_t *hello, const uint8_t *challenge,
                    uint8_t *out_proof);
/* Whether a proof is right, in constant time. */
bool lifeline_proves(const mr_secret *key, lifeline_side side, const uint8_t *hello, const uint8_t *challenge,
                     const uint8_t *proof);

/* For poll(): milliseconds until deadline_ns, rounded up, an hour at most. */
int lifeline_wait_ms(int64_t deadline_ns);
/* Closes *fd if it is open, and sets *fd to -1. */
void lifeline_fd_close(int *fd);

#endif
