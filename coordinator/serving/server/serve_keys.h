/* coordinator/serving/server/serve_keys.h - one reader for the API keys of --api-key, MILLRACE_API_KEY and
 * --api-key-file.
 *   - Each line is a key. White space around a key is no part of it: secrets often end with a newline.
 *   - Empty lines, and lines that begin with #, are left out.
 *   - In the option and the variable, which may have lines too, commas separate keys. In a file, a comma is a part of
 *     a key.
 *   - A key with white space inside, or in quotes, is refused: it is another thing that was taken for a key.
 * Owns:    the texts of the keys, which deinit erases. {0} holds no key, and may be deinitialised.
 * Threads: caller serialises.
 * Errors:  MR_E_INVALID names the option or the variable, and the file and the line. It never shows a key.
 *          MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SERVE_KEYS_H
#define MR_COORDINATOR_SERVING_SERVER_SERVE_KEYS_H

#include "coordinator/console/options.h"
#include "engine/text/buffers.h"

enum { SERVE_KEY_FILE_MAX_BYTES = 1 << 20 };

typedef struct serve_keys {
    mr_text_buf texts; /* each with a zero byte behind it */
    const char **list; /* [n]: points into texts */
    int32_t n;
} serve_keys;

/* Reads the keys of all sources into k, which is {0}: those of the option or the variable, then those of the file. A
 * source without any key is an error; without a source, k->n is 0. Call deinit also after an error. */
MR_MUST_USE mr_status serve_keys_read(serve_keys *k, const mr_options *o, mr_err *err);
void serve_keys_deinit(serve_keys *k);

#endif
