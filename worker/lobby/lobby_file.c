/* worker/lobby/lobby_file.c - opens the model file with what the cache has of it. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/cache_dir.h"
#include "engine/base/mem.h"
#include "worker/files/file_cache.h"
#include "worker/lobby/lobby.h"

mr_status mr_lobby_open_file(const char *path, const char *cache_dir, const mr_part_place *places, int32_t n,
                             uint64_t digest, mr_gguf **out, mr_err *err) {
    uint64_t at[MR_GGUF_MAX_PARTS];
    char *folder = NULL, *cache_path = NULL;
    mr_status status = mr_cache_dir_make(cache_dir, &folder, err);
    if (status == MR_OK) {
        cache_path = mr_file_cache_name(folder, mr_part_files_layout(places, n, at), digest);
        status = cache_path ? mr_gguf_open_places(path, places, n, cache_path, out, err)
                            : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    }
    mr_free(cache_path);
    mr_free(folder);
    return status;
}
