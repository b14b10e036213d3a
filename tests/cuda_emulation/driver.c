/* tests/cuda_emulation/driver.c - the emulated driver's table, what all its calls have in common, handles, devices and
 * contexts. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_emulation/driver_internal.h"

emulated emulated_state = {.lock = {PTHREAD_MUTEX_INITIALIZER}, .changed = {PTHREAD_COND_INITIALIZER}};
static emulated *const e = &emulated_state;
static _Thread_local cuda_context current;

const char *const emulated_driver_functions[] = {
#define FUNCTION(member, symbol, ...) #member,
#include "backends/cuda/cuda_driver.def"
#undef FUNCTION
    NULL};

const cuda_driver *emulated_driver(void) {
    static const cuda_driver table = {
#define FUNCTION(member, symbol, ...) .member = emulated_##member,
#include "backends/cuda/cuda_driver.def"
#undef FUNCTION
    };
    return &table;
}

void emulated_stop(const char *what, const char *name) {
    fprintf(stderr, "emulated driver: %s%s%s\n", what, name ? ": " : "", name ? name : "");
    abort();
}

void *emulated_alloc(size_t bytes) {
    void *at = calloc(1, bytes);
    if (!at)
        emulated_stop("no memory", NULL);
    return at;
}

/* --- Calls ------------------------------------------------------------------------------------------------------- */

/* Errors after which a context cannot be used any more. */
static bool is_sticky(cuda_result result) {
    return result == CUDA_ILLEGAL_ADDRESS || (result >= 714 && result <= CUDA_LAUNCH_FAILED);
}

static cuda_result chosen_failure(const call *c) {
    const emulated_options *o = &e->options;
    const char *name = emulated_driver_functions[c->kind];
    int32_t n = o->fail ? e->n_calls[c->kind] : e->counts.n_calls;
    if (n != o->fail_at || (o->fail && strcmp(o->fail, name) != 0))
        return CUDA_OK;
    e->counts.failed = name;
    cuda_result result = o->result ? o->result : CUDA_UNKNOWN;
    if (c->context && is_sticky(result))
        c->context->broken = result;
    return result;
}

static call begin(call_kind kind) {
    mr_mutex_lock(&e->lock);
    if (!e->is_set)
        e->options = emulated_read_environment();
    e->is_set = true;
    e->n_calls[kind]++;
    e->counts.n_calls++;
    call c = {.kind = kind};
    if (!e->initialized && kind != CALL_init && kind != CALL_driver_get_version)
        emulated_refuse(&c, CUDA_NOT_INITIALIZED);
    return c;
}

call emulated_begin_free(call_kind kind) {
    call c = begin(kind);
    if (!c.refused)
        c.result = chosen_failure(&c);
    return c;
}

call emulated_begin(call_kind kind) {
    call c = begin(kind);
    for (int i = 0; i < EMULATED_MAX_DEVICES && current; i++)
        if (e->contexts[i].handle == current)
            c.context = &e->contexts[i];
    if (!c.refused && !c.context)
        emulated_refuse(&c, CUDA_INVALID_CONTEXT);
    if (!c.refused)
        c.result = chosen_failure(&c);
    if (!c.refused && c.result == CUDA_OK)
        c.result = c.context->broken;
    return c;
}

cuda_result emulated_end(call *c) {
    mr_mutex_unlock(&e->lock);
    return c->result;
}

void emulated_refuse(call *c, cuda_result result) {
    c->result = result;
    c->refused = true;
    e->counts.n_refused++;
    e->counts.refused = emulated_driver_functions[c->kind];
}

/* --- Handles ----------------------------------------------------------------------------------------------------- */

typedef struct entry {
    object_kind kind;
    const context *owner;
    void *object; /* NULL: it was destroyed */
} entry;
static entry *entries;
static uintptr_t n_entries;

enum { HANDLE_STEP = 16 }; /* handle = (index + 1) * step + kind */

void *emulated_add(object_kind kind, const context *owner, void *object) {
    entries = realloc(entries, (n_entries + 1) * sizeof *entries);
    if (!entries)
        emulated_stop("no memory", NULL);
    entries[n_entries++] = (entry){kind, owner, object};
    e->n_live[kind]++;
    return (void *)(n_entries * HANDLE_STEP + kind);
}

static entry *find(call *c, object_kind kind, const void *handle) {
    uintptr_t i = (uintptr_t)handle / HANDLE_STEP - 1;
    if ((uintptr_t)handle % HANDLE_STEP == kind && i < n_entries && entries[i].object && entries[i].owner == c->context)
        return &entries[i];
    emulated_refuse(c, CUDA_INVALID_HANDLE);
    return NULL;
}

void *emulated_find(call *c, object_kind kind, const void *handle) {
    entry *found = find(c, kind, handle);
    return found ? found->object : NULL;
}

void *emulated_remove(call *c, object_kind kind, const void *handle) {
    entry *found = c->refused ? NULL : find(c, kind, handle);
    void *object = found ? found->object : NULL;
    if (found) {
        found->object = NULL;
        e->n_live[kind]--;
    }
    return object;
}

void emulated_remove_all(object_kind kind, void (*destroy)(void *object)) {
    for (uintptr_t i = 0; i < n_entries; i++)
        if (entries[i].kind == kind && entries[i].object) {
            destroy(entries[i].object);
            entries[i].object = NULL;
            e->n_live[kind]--;
        }
}

/* --- Devices ----------------------------------------------------------------------------------------------------- */

static int32_t or_default(int32_t value, int32_t otherwise) {
    return value ? value : otherwise;
}

static int32_t n_devices(void) {
    return e->options.no_device ? 0 : or_default(e->options.n_devices, 1);
}

size_t emulated_total_bytes(void) {
    return e->options.memory_bytes ? e->options.memory_bytes : (size_t)2 << 30;
}

int32_t emulated_shared_bytes(void) {
    return or_default(e->options.shared_bytes, 227 << 10);
}

static bool is_device(call *c, cuda_device device) {
    if (c->result == CUDA_OK && (device < 0 || device >= n_devices()))
        emulated_refuse(c, CUDA_INVALID_DEVICE);
    return c->result == CUDA_OK;
}

cuda_result emulated_init(unsigned flags) {
    call c = emulated_begin_free(CALL_init);
    if (c.result == CUDA_OK && flags != 0)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    else if (c.result == CUDA_OK && n_devices() == 0)
        c.result = CUDA_NO_DEVICE;
    e->initialized |= c.result == CUDA_OK;
    return emulated_end(&c);
}

cuda_result emulated_driver_get_version(int *version) {
    call c = emulated_begin_free(CALL_driver_get_version);
    if (c.result == CUDA_OK)
        *version = or_default(e->options.version, 12040);
    return emulated_end(&c);
}

static const char *const *error_words(cuda_result error) {
    static const struct {
        cuda_result error;
        const char *words[2];
    } known[] = {
        {CUDA_OK, {"CUDA_SUCCESS", "no error"}},
        {CUDA_INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
        {CUDA_OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
        {CUDA_NOT_INITIALIZED, {"CUDA_ERROR_NOT_INITIALIZED", "not initialised"}},
        {CUDA_NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no device"}},
        {CUDA_INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "no such device"}},
        {CUDA_INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "no current context"}},
        {CUDA_NO_BINARY_FOR_GPU, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernels for this device"}},
        {CUDA_INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid handle"}},
        {CUDA_NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "no such name"}},
        {CUDA_NOT_READY, {"CUDA_ERROR_NOT_READY", "not ready"}},
        {CUDA_ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel used a wrong address"}},
        {CUDA_LAUNCH_OUT_OF_RESOURCES, {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many threads"}},
        {CUDA_ALREADY_REGISTERED, {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already pinned"}},
        {CUDA_NOT_REGISTERED, {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not pinned"}},
        {CUDA_LAUNCH_FAILED, {"CUDA_ERROR_LAUNCH_FAILED", "a kernel failed"}},
        {CUDA_NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "not supported"}},
        {CUDA_SYSTEM_DRIVER_MISMATCH, {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "driver and kernel module differ"}},
        {CUDA_UNKNOWN, {"CUDA_ERROR_UNKNOWN", "unknown error"}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].error == error)
            return known[i].words;
    return NULL;
}

cuda_result emulated_get_error_name(cuda_result error, const char **name) {
    const char *const *words = error_words(error);
    *name = words ? words[0] : NULL;
    return words ? CUDA_OK : CUDA_INVALID_VALUE;
}

cuda_result emulated_get_error_string(cuda_result error, const char **text) {
    const char *const *words = error_words(error);
    *text = words ? words[1] : NULL;
    return words ? CUDA_OK : CUDA_INVALID_VALUE;
}

cuda_result emulated_device_get_count(int *count) {
    call c = emulated_begin_free(CALL_device_get_count);
    if (c.result == CUDA_OK)
        *count = n_devices();
    return emulated_end(&c);
}

cuda_result emulated_device_get(cuda_device *device, int ordinal) {
    call c = emulated_begin_free(CALL_device_get);
    if (is_device(&c, ordinal))
        *device = ordinal;
    return emulated_end(&c);
}

cuda_result emulated_device_get_name(char *name, int len, cuda_device device) {
    call c = emulated_begin_free(CALL_device_get_name);
    if (is_device(&c, device) && len <= 0)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK)
        snprintf(name, (size_t)len, "%s", e->options.name ? e->options.name : "emulated GPU");
    return emulated_end(&c);
}

cuda_result emulated_device_total_mem(size_t *bytes, cuda_device device) {
    call c = emulated_begin_free(CALL_device_total_mem);
    if (is_device(&c, device))
        *bytes = emulated_total_bytes();
    return emulated_end(&c);
}

/* The same for a device of this number in every process, as on one host. */
cuda_result emulated_device_get_uuid(cuda_uuid *uuid, cuda_device device) {
    call c = emulated_begin_free(CALL_device_get_uuid);
    if (is_device(&c, device))
        *uuid = (cuda_uuid){{'e', 'm', 'u', 'l', 'a', 't', 'e', 'd', (char)device}};
    return emulated_end(&c);
}

cuda_result emulated_device_get_attribute(int *value, int attribute, cuda_device device) {
    call c = emulated_begin_free(CALL_device_get_attribute);
    int32_t capability = or_default(e->options.capability, 90);
    const int known[][2] = {
        {CUDA_ATTRIBUTE_PROCESSORS, or_default(e->options.n_processors, 4)},
        {CUDA_ATTRIBUTE_INTEGRATED, 0},
        {CUDA_ATTRIBUTE_PCI_BUS, device + 1},
        {CUDA_ATTRIBUTE_PCI_DEVICE, 0},
        {CUDA_ATTRIBUTE_CAPABILITY_MAJOR, capability / 10},
        {CUDA_ATTRIBUTE_CAPABILITY_MINOR, capability % 10},
        {CUDA_ATTRIBUTE_SHARED_BYTES_OPT_IN, emulated_shared_bytes()},
    };
    if (!is_device(&c, device))
        return emulated_end(&c);
    size_t i = 0;
    while (i < sizeof known / sizeof *known && known[i][0] != attribute)
        i++;
    if (i < sizeof known / sizeof *known)
        *value = known[i][1];
    else
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    return emulated_end(&c);
}

/* --- Contexts ---------------------------------------------------------------------------------------------------- */

cuda_result emulated_device_primary_ctx_retain(cuda_context *out, cuda_device device) {
    call c = emulated_begin_free(CALL_device_primary_ctx_retain);
    if (is_device(&c, device)) {
        context *x = &e->contexts[device];
        if (x->n_retained++ == 0)
            x->handle = emulated_add(OBJECT_CONTEXT, NULL, x);
        *out = x->handle;
    }
    return emulated_end(&c);
}

cuda_result emulated_device_primary_ctx_release(cuda_device device) {
    call c = emulated_begin_free(CALL_device_primary_ctx_release);
    context *x = !c.refused && device >= 0 && device < n_devices() ? &e->contexts[device] : NULL;
    if (!c.refused && (!x || x->n_retained == 0))
        emulated_refuse(&c, x ? CUDA_INVALID_CONTEXT : CUDA_INVALID_DEVICE);
    if (!c.refused && --x->n_retained == 0) {
        (void)emulated_remove(&c, OBJECT_CONTEXT, x->handle);
        x->handle = NULL;
        x->broken = CUDA_OK;
    }
    return emulated_end(&c);
}

cuda_result emulated_ctx_set_current(cuda_context handle) {
    call c = emulated_begin_free(CALL_ctx_set_current);
    if (c.result == CUDA_OK && (!handle || emulated_find(&c, OBJECT_CONTEXT, handle)))
        current = handle;
    return emulated_end(&c);
}

/* --- What tests call --------------------------------------------------------------------------------------------- */

static void forget_context(void *object) {
    *(context *)object = (context){0};
}

void emulated_driver_reset(const emulated_options *options) {
    emulated_streams_reset();
    emulated_graphs_reset();
    emulated_memory_reset();
    emulated_remove_all(OBJECT_CONTEXT, forget_context);
    memset(e->n_calls, 0, sizeof e->n_calls);
    e->counts = (emulated_counts){0};
    e->n_works = 0;
    e->initialized = false;
    e->is_set = true;
    e->options = options ? *options : emulated_read_environment();
    if (e->options.n_devices > EMULATED_MAX_DEVICES)
        emulated_stop("too many devices", NULL);
}

emulated_counts emulated_driver_counts(void) {
    mr_mutex_lock(&e->lock);
    emulated_counts counts = e->counts;
    counts.n_live_contexts = e->n_live[OBJECT_CONTEXT];
    counts.n_live_streams = e->n_live[OBJECT_STREAM];
    counts.n_live_events = e->n_live[OBJECT_EVENT];
    counts.n_live_modules = e->n_live[OBJECT_MODULE];
    counts.n_live_graphs = e->n_live[OBJECT_GRAPH];
    counts.n_live_execs = e->n_live[OBJECT_EXEC];
    mr_mutex_unlock(&e->lock);
    counts.n_live = counts.n_live_memory + counts.n_live_host_memory + counts.n_live_registered +
                    counts.n_live_contexts + counts.n_live_streams + counts.n_live_events + counts.n_live_modules +
                    counts.n_live_graphs + counts.n_live_execs;
    return counts;
}
