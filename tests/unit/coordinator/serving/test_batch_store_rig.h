/* tests/unit/coordinator/serving/test_batch_store_rig.h - a store of batches over a folder, and requests to the store.
 * tests/support/fake_api.c answers the calls. A failure ends the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_COORDINATOR_SERVING_TEST_BATCH_STORE_RIG_H
#define MR_TESTS_UNIT_COORDINATOR_SERVING_TEST_BATCH_STORE_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/batch/batch_store.h"
#include "tests/support/fake_api.h"
#include "tests/support/test.h"

enum { NEVER_BUSY = 1 << 30 };

extern char folder[];
extern mr_batch_store *store;

/* Of the group of tests: makes and removes the folder. */
int store_setup(void **state);
int store_teardown(void **state);

/* Starts the fake API, with this delay, and the store; its worker, too, where works is set. */
void store_start(int delay_us, bool works);
/* Starts the worker of a store that has none. */
void store_work(void);
void store_stop(void);

/* The answer's object; its status is checked. */
json_t *ask(const char *method, const char *path, const char *body, int status);
void ask_wrong(const char *method, const char *path, const char *body, int status, const char *words);
/* The content of a file; it is there. The caller frees it with mr_text_buf_deinit. */
mr_text_buf content_of(const char *file_id);
const char *text_at(const json_t *object, const char *key);
void upload(const char *content, char id[BATCH_ID_BYTES]);
/* A batch of an uploaded file, for this endpoint. */
void create_for(const char *endpoint, const char *input, char id[BATCH_ID_BYTES]);
void create(const char *input, char id[BATCH_ID_BYTES]); /* for /v1/completions */
json_t *get_batch(const char *id);
/* Waits until the batch has the status: the batch. */
json_t *wait_for(const char *id, const char *status);
/* Waits until as many requests are counted: completed or failed. */
void wait_for_count(const char *id, const char *key, int n);
int count(const json_t *batch, const char *key); /* of request_counts */

void path_in_folder(const char *name, const char *ending, char out[200]);
void write_in_folder(const char *name, const char *text);
bool is_in_folder(const char *name);

#endif
