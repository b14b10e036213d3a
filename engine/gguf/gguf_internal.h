/* engine/gguf/gguf_internal.h - the parsed file, and the functions that the source files of the reader share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_GGUF_INTERNAL_H
#define MR_ENGINE_GGUF_GGUF_INTERNAL_H

#include "engine/base/arena.h"
#include "engine/base/reader.h"
#include "engine/gguf/gguf.h"

/* How error texts show a name: at most its first 100 bytes. */
#define GGUF_NAME "'%.100s'"

/* Instead of "GGUF": the file of PowerInfer (Song et al., 2023). All else is as in GGUF version 3. */
#define GGUF_SPARSE_MAGIC "PWRI"

typedef struct gguf_key {
    const char *name;
    mr_gguf_type type;
    mr_gguf_array value; /* a single value is an array of one */
} gguf_key;

struct mr_gguf {
    const uint8_t *data;
    size_t size;
    bool is_sparse;  /* GGUF_SPARSE_MAGIC */
    bool mapped;     /* data is a mapping made by mr_gguf_open */
    mr_arena *arena; /* names, tables, string starts */
    uint32_t version, alignment;
    int32_t n_keys, n_tensors;
    size_t header_bytes;
    gguf_key *keys, **keys_by_name;
    mr_gguf_tensor *tensors, **tensors_by_name;
    int32_t n_parts; /* 0: this is one of the others */
    mr_gguf_part *parts;
    mr_gguf **others;                         /* [n_parts - 1]: the parts behind the first one */
    mr_gguf_tensor *joined, **joined_by_name; /* of all parts; NULL where there is one */
};

/* Reads everything in front of the tensor data into g, which is part idx of n. The caller has set g->data, g->size and
 * g->arena. */
mr_status gguf_parse(mr_gguf *g, int32_t idx, int32_t n, mr_err *err);
/* Reads the tensor table at the position of r. The keys have been read before. */
mr_status gguf_parse_tensors(mr_gguf *g, mr_reader *r, mr_err *err);
/* Sorts tensors_by_name. MR_E_FORMAT: two tensors have one name. */
mr_status gguf_sort_names(mr_gguf *g, mr_err *err);

/* Reads a name of 1 to max_bytes printable ASCII characters. The name is copied into the arena and terminated. Error
 * texts call the entry "<what> <idx + 1> of <n>". */
mr_status gguf_read_name(mr_gguf *g, mr_reader *r, const char *what, int32_t idx, int32_t n, size_t max_bytes,
                         const char **out_name, mr_err *err);
/* The error for a read of r that did not fit into the file, or into the limit of the header. The caller puts the name
 * of the place in front of the text. */
mr_status gguf_ends_early(const mr_gguf *g, const mr_reader *r, mr_err *err);
mr_status gguf_no_memory(const mr_gguf *g, mr_err *err);

/* Bytes of one value of a type; 0 for strings, arrays and unknown types. */
size_t gguf_type_bytes(uint32_t type);
const gguf_key *gguf_find_key(const mr_gguf *g, const char *name);

#endif
