/* engine/gguf/gguf.h - a reader of GGUF model files, versions 2 and 3, little-endian.
 * Opening a file checks every count, length and offset in the file before the reader uses it. After a successful open
 * all names, values and tensor ranges lie inside the file.
 * Format:  the GGUF specification, ggml/docs/gguf.md.
 * Owns:    the mapping of the file, the tables and the names. Text and data pointers are valid until mr_gguf_close.
 *          Borrows: the memory given to mr_gguf_open_memory, which outlives the object. The tensor data is aligned as
 *          far as this memory is.
 * Threads: an open file does not change, so any thread may call any function but mr_gguf_close.
 * Errors:  any mr_status function may return MR_E_NO_MEMORY; others are named at the function. Error texts name the key
 *          or tensor and the value. If another program truncates the file while the file is mapped, this process dies
 *          of SIGBUS: replace model files by renaming, never by writing into them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_GGUF_H
#define MR_ENGINE_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/gguf/part_files.h"
#include "engine/tensor/type.h"

enum {
    MR_GGUF_MAX_DIMS = 4,
    MR_GGUF_MAX_KEYS = 1 << 16,
    MR_GGUF_MAX_KEY_BYTES = 65535, /* of a key's name, by the specification */
    MR_GGUF_MAX_TENSORS = 1 << 18,
    MR_GGUF_MAX_TENSOR_NAME_BYTES = 255, /* the specification says 64, but longer names occur */
    MR_GGUF_MAX_STRINGS = 1 << 24,       /* in one array */
    MR_GGUF_MIN_ALIGNMENT = 8,
    MR_GGUF_DEFAULT_ALIGNMENT = 32,
    MR_GGUF_MAX_ALIGNMENT = 1 << 20,
    MR_GGUF_MAX_HEADER_BYTES = 1 << 30, /* everything in front of the tensor data */
};

/* Types of metadata values, with the numbers of the file format. */
typedef enum mr_gguf_type {
    MR_GGUF_U8 = 0,
    MR_GGUF_I8 = 1,
    MR_GGUF_U16 = 2,
    MR_GGUF_I16 = 3,
    MR_GGUF_U32 = 4,
    MR_GGUF_I32 = 5,
    MR_GGUF_F32 = 6,
    MR_GGUF_BOOL = 7,
    MR_GGUF_STRING = 8,
    MR_GGUF_ARRAY = 9, /* never the type of an array's elements: a file with nested arrays is refused */
    MR_GGUF_U64 = 10,
    MR_GGUF_I64 = 11,
    MR_GGUF_F64 = 12,
    MR_GGUF_TYPE_COUNT = 13,
} mr_gguf_type;

/* A file of the model, in the virtual file. */
typedef struct mr_gguf_part {
    uint64_t at, bytes;
    uint64_t header_bytes; /* in front of the tensor data of the part */
} mr_gguf_part;

typedef struct mr_gguf mr_gguf;

typedef struct mr_gguf_tensor {
    const char *name; /* printable ASCII, 1 to 255 bytes */
    mr_type type;
    int32_t n_dims;               /* 1 to 4 */
    int64_t ne[MR_GGUF_MAX_DIMS]; /* elements, innermost first; 1 beyond n_dims */
    uint64_t offset;              /* of the data, from the start of the file */
    size_t bytes;
    const uint8_t *data;
} mr_gguf_tensor;

/* Maps a file and checks its header. MR_E_NOT_FOUND: no such file. MR_E_IO: the file cannot be opened or mapped.
 * MR_E_FORMAT: no GGUF file, or a malformed or truncated one. MR_E_UNSUPPORTED: another version, byte order or tensor
 * type.
 * The path of one part of a model in parts opens all parts as one virtual file (engine/gguf/part_files.h). The tensors
 * have the offsets of that file, and the keys are those of the first part. MR_E_FORMAT also: the parts do not fit
 * together. */
MR_MUST_USE mr_status mr_gguf_open(const char *path, mr_gguf **out_gguf, mr_err *err);
/* Opens a file whose n parts, 1 to MR_GGUF_MAX_PARTS, are at these places. cache_path: a file with the offsets of the
 * virtual file, for the parts that are not here. MR_E_IO also: a part has another size. MR_E_FORMAT also: the cache has
 * another size. */
MR_MUST_USE mr_status mr_gguf_open_places(const char *path, const mr_part_place *places, int32_t n,
                                          const char *cache_path, mr_gguf **out_gguf, mr_err *err);
/* Opens part idx alone, as a file of one part. */
MR_MUST_USE mr_status mr_gguf_open_part(const char *path, int32_t idx, mr_gguf **out_gguf, mr_err *err);
/* Opens the bytes of a whole file in memory. */
MR_MUST_USE mr_status mr_gguf_open_memory(const void *data, size_t size, mr_gguf **out_gguf, mr_err *err);
void mr_gguf_close(mr_gguf *g);

uint32_t mr_gguf_version(const mr_gguf *g);
/* The file has the magic "PWRI" of PowerInfer: its feed-forward parts are sparse. */
bool mr_gguf_is_sparse(const mr_gguf *g);
/* Bytes of the virtual file. */
size_t mr_gguf_file_bytes(const mr_gguf *g);
/* The first byte of the virtual file. Between its parts nothing may be touched. */
const uint8_t *mr_gguf_file_data(const mr_gguf *g);
/* The parts in order; a whole file is one part. */
int32_t mr_gguf_n_parts(const mr_gguf *g);
const mr_gguf_part *mr_gguf_part_at(const mr_gguf *g, int32_t idx);

/* Tensors, in the order of the file. The pointers are valid until close. */
int32_t mr_gguf_n_tensors(const mr_gguf *g);
const mr_gguf_tensor *mr_gguf_tensor_at(const mr_gguf *g, int32_t idx);
/* Returns NULL when no tensor has this name. */
const mr_gguf_tensor *mr_gguf_find_tensor(const mr_gguf *g, const char *name);

/* Keys, in the order of the file. */
int32_t mr_gguf_n_keys(const mr_gguf *g);
const char *mr_gguf_key_name(const mr_gguf *g, int32_t idx);
mr_gguf_type mr_gguf_key_type(const mr_gguf *g, int32_t idx);
/* Writes the value as one line of printable text to out_text, which has size bytes with the terminating zero. Long
 * arrays and texts are cut short, and the line then says how long they are. */
void mr_gguf_key_format(const mr_gguf *g, int32_t idx, char *out_text, size_t size);
/* "u32", "string" and so on; "?" for a number that is no type. */
const char *mr_gguf_type_name(int32_t type);
bool mr_gguf_has_key(const mr_gguf *g, const char *key);

/* Reads one value by its key. MR_E_NOT_FOUND: no such key. MR_E_FORMAT: the value has another type, or does not fit
 * into the result; the error text says which. Converters differ in types, so an integer may be stored in any integer
 * type, a float also as f64 or an integer, and a bool also as the integer 0 or 1. */
MR_MUST_USE mr_status mr_gguf_get_u32(const mr_gguf *g, const char *key, uint32_t *out, mr_err *err);
MR_MUST_USE mr_status mr_gguf_get_i32(const mr_gguf *g, const char *key, int32_t *out, mr_err *err);
MR_MUST_USE mr_status mr_gguf_get_u64(const mr_gguf *g, const char *key, uint64_t *out, mr_err *err);
MR_MUST_USE mr_status mr_gguf_get_i64(const mr_gguf *g, const char *key, int64_t *out, mr_err *err);
MR_MUST_USE mr_status mr_gguf_get_f32(const mr_gguf *g, const char *key, float *out, mr_err *err);
MR_MUST_USE mr_status mr_gguf_get_bool(const mr_gguf *g, const char *key, bool *out, mr_err *err);
/* out points into the file. The text has no terminating zero and may be invalid UTF-8. */
MR_MUST_USE mr_status mr_gguf_get_str(const mr_gguf *g, const char *key, mr_str *out, mr_err *err);

/* What the elements of an array must be. */
typedef enum mr_gguf_elems {
    MR_GGUF_ELEMS_ANY,
    MR_GGUF_ELEMS_INTEGERS, /* any integer type */
    MR_GGUF_ELEMS_FLOATS,   /* numbers of any type */
    MR_GGUF_ELEMS_BOOLS,
    MR_GGUF_ELEMS_STRINGS,
} mr_gguf_elems;

typedef struct mr_gguf_array {
    mr_gguf_type type; /* of the elements */
    size_t n;
    const uint8_t *data;           /* points into the file: little-endian, unaligned */
    const uint32_t *string_starts; /* of strings: the offset of each text from data */
} mr_gguf_array;

/* Looks up an array by its key. MR_E_NOT_FOUND: no such key. MR_E_FORMAT: the value is no array, or an array of other
 * elements. out points into the file. */
MR_MUST_USE mr_status mr_gguf_get_array(const mr_gguf *g, const char *key, mr_gguf_elems elems, mr_gguf_array *out,
                                        mr_err *err);
/* Reads one element. idx is below a->n, and the elements are of the kind that the function returns. i64 takes integers
 * and bools; a u64 beyond INT64_MAX comes out negative. i32 and u32 saturate. f32 takes numbers of any type. */
mr_str mr_gguf_array_str(const mr_gguf_array *a, size_t idx);
int64_t mr_gguf_array_i64(const mr_gguf_array *a, size_t idx);
int32_t mr_gguf_array_i32(const mr_gguf_array *a, size_t idx);
uint32_t mr_gguf_array_u32(const mr_gguf_array *a, size_t idx);
float mr_gguf_array_f32(const mr_gguf_array *a, size_t idx);

/* Hints to the kernel about a range of the mapped file. The functions ignore a file in memory and a range outside of
 * the file. release_pages drops the whole pages inside the range, so that the process holds less memory; a later access
 * reads the pages again. prefetch starts to read all pages that the range touches. */
void mr_gguf_release_pages(const mr_gguf *g, const void *data, size_t bytes);
void mr_gguf_prefetch(const mr_gguf *g, const void *data, size_t bytes);

#endif
