/* coordinator/session/session_starve.h - what --recover does where the ranks that are left have too little memory for
 * the layers, or for the longest sequence: the job waits, and its sequences with it. The ranks are asked for their free
 * memory from time to time.
 * Owns:    nothing. Threads: bound to the thread that runs the job, where nothing else is said.
 * Errors:  MR_E_CANCELLED: the command should end. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_STARVE_H
#define MR_COORDINATOR_SESSION_SESSION_STARVE_H

#include "coordinator/session/session.h"

/* Ends all stages, asks the living ranks for their free memory, and notes it in the facts that plans are made of. What
 * is known of ranks that do not answer in time stays. */
void session_starve_ask(mr_session *s, mr_job *job);
/* The memory that the ranks living[n] lack for the model with kv_tokens tokens of KV cache, by the facts of the
 * session, at least one byte. */
uint64_t session_starve_missing(const mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens);
/* The job waits from now on, or goes on waiting, because of an error. */
void session_starve_begin(mr_session *s, mr_job *job, uint64_t missing_bytes, const mr_err *why);
/* The job has a plan again. */
void session_starve_end(mr_session *s);
/* Whether it is time to ask the ranks again. */
bool session_starve_is_due(const mr_session *s);
/* While the job waits, before a plan is made: ranks whose stage has failed for lack of memory may be tried again
 * after some time. */
void session_starve_forgive(mr_session *s);

/* Whether the job waits. */
bool mr_session_is_starved(const mr_session *s);
/* Any thread, from mr_session_start to mr_session_close: copies the state. */
void mr_session_get_starvation(mr_session *s, mr_session_starvation *out);

#endif
