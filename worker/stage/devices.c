/* worker/stage/devices.c - creates the devices of a stage. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/devices.h"

#include <stdio.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/base/bytes_text.h"
#include "engine/base/log.h"

static bool is_auto(const mr_devices_config *config) {
    return config->backend && strcmp(config->backend, MR_DEVICES_AUTO) == 0;
}

/* Whether the config asks for devices of this kind. */
static bool wants(const mr_devices_config *config, const mr_backend_kind *kind) {
    if (kind == &mr_backend_kind_cpu || !config->backend || (!kind->exact && !config->is_fast))
        return false;
    return is_auto(config) ? kind->create != NULL : strcmp(config->backend, kind->name) == 0;
}

bool mr_devices_only_multiply(const mr_devices_config *config) {
    return config->backend && strcmp(config->backend, mr_backend_kind_blas.name) == 0;
}

bool mr_devices_must_hold_layers(const mr_devices_config *config) {
    return !is_auto(config) && mr_devices_may_hold_layers(config);
}

bool mr_devices_may_hold_layers(const mr_devices_config *config) {
    bool may = false;
    for (const mr_backend_kind *const *kind = mr_backend_kinds; *kind && !may; kind++)
        may = *kind != &mr_backend_kind_blas && wants(config, *kind) &&
              (!is_auto(config) || mr_backend_kind_devices(*kind) > 0);
    return may;
}

int32_t mr_devices_count(const mr_devices_config *config) {
    int32_t most = 0;
    for (const mr_backend_kind *const *kind = mr_backend_kinds; *kind; kind++) {
        int32_t n = *kind != &mr_backend_kind_blas && wants(config, *kind) ? mr_backend_kind_devices(*kind) : 0;
        if (n != INT32_MAX && n > most)
            most = n;
    }
    return config->one_device > 0 && most > 1 ? 1 : most;
}

mr_status mr_devices_choose(const char *backend, bool is_fast, mr_devices_config *out, mr_err *err) {
    mr_devices_config config = {.backend = backend, .is_fast = is_fast};
    const mr_backend_kind *kind = backend ? mr_backend_kind_find(backend) : &mr_backend_kind_cpu;
    char names[128] = MR_DEVICES_AUTO;
    size_t n = strlen(names);
    for (size_t i = 0; mr_backend_kinds[i] && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, ", %s", mr_backend_kinds[i]->name);
    if (!kind && !is_auto(&config))
        return mr_err_set(err, MR_E_INVALID, "--backend: \"%.80s\" is not one of %s", backend, names);
    if (kind && !kind->exact && !is_fast)
        return mr_err_set(err, MR_E_INVALID, "--backend %s does not compute exact numerics; hint: --numerics fast",
                          kind->name);
    config.is_fast = is_fast && kind != &mr_backend_kind_cpu;
    *out = config;
    return MR_OK;
}

void mr_devices_prepare(const mr_devices_config *config) {
    for (const mr_backend_kind *const *kind = mr_backend_kinds; *kind; kind++)
        if (wants(config, *kind))
            mr_backend_prepare((*kind)->name);
}

/* Chooses the device of a kind for this stage. */
static mr_status choose_device(const mr_devices_config *config, const mr_backend_kind *kind, mr_backend_options *out,
                               mr_err *err) {
    int32_t n = mr_backend_kind_devices(kind), n_seats = config->n_seats > 0 ? config->n_seats : 1;
    out->memory_bytes = (size_t)config->memory_bytes;
    out->n_sharers = 1;
    if (n == INT32_MAX || n == 0) /* without any, creating the backend says why */
        return MR_OK;
    if (config->one_device > n)
        return mr_err_set(err, MR_E_INVALID, "--device %d: the backend '%s' has %d here, counted from 0",
                          (int)config->one_device - 1, kind->name, (int)n);
    out->device = config->one_device > 0 ? config->one_device - 1 : config->seat % n;
    out->n_sharers = config->one_device > 0 ? n_seats : (n_seats - 1 - out->device) / n + 1;
    return MR_OK;
}

static void say_shared(const mr_device_info *device, const mr_backend_options *o) {
    mr_log_write(MR_LOG_INFO, "worker", "%d stages share '%s', so each gets at most %s of its memory",
                 (int)o->n_sharers, device->name, mr_bytes_text(device->memory_bytes, (char[MR_BYTES_TEXT]){0}));
}

static void warn(const char *name, const char *why) {
    mr_log_write(MR_LOG_WARN, "worker", "'%s' is not used: %s", name, why);
}

/* Adds the device of a kind. One that is missing or fails is an error only if it was asked for by its name. */
static mr_status add_device(const mr_devices_config *config, const mr_backend_kind *kind, int32_t n_threads,
                            const int *cpu_ids, mr_devices *d, mr_err *err) {
    mr_backend_options options = {.n_threads = n_threads, .cpu_ids = cpu_ids};
    mr_err why = {0};
    mr_backend *be = NULL;
    mr_status status = choose_device(config, kind, &options, &why);
    if (status == MR_OK)
        status = mr_backend_create(kind->name, &options, &be, &why);
    if (status == MR_E_UNSUPPORTED && is_auto(config)) {
        mr_log_write(MR_LOG_DEBUG, "worker", "no device of the backend '%s': %s", kind->name, why.text);
        return MR_OK;
    }
    if ((status == MR_E_DEVICE || status == MR_E_NO_MEMORY) && is_auto(config)) {
        warn(kind->name, why.text);
        return MR_OK;
    }
    if (status != MR_OK)
        return mr_err_set(err, status, "%s", why.text);
    mr_device_info device;
    be->ops->describe(be, &device);
    d->list.at[d->list.n++] = be;
    if (options.n_sharers > 1 && config->seat < mr_backend_kind_devices(kind)) /* the first of them says it */
        say_shared(&device, &options);
    d->is_measured = d->is_measured || (is_auto(config) && (device.keeps_source || !device.host_addressable));
    if (!device.exact && !config->is_fast)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "the device '%s' does not compute exact numerics; hint: --numerics fast", device.name);
    return MR_OK;
}

mr_status mr_devices_create(const mr_devices_config *config, int32_t n_threads, const int *cpu_ids, mr_devices *out,
                            mr_err *err) {
    mr_devices d = {.is_auto = is_auto(config)};
    mr_status status = MR_OK;
    for (const mr_backend_kind *const *kind = mr_backend_kinds; *kind && status == MR_OK; kind++) {
        bool is_blas = *kind == &mr_backend_kind_blas;
        int32_t n = is_blas && config->blas_threads > 0 ? config->blas_threads : n_threads;
        if (wants(config, *kind) && d.list.n < MR_MAX_BACKENDS - 1)
            status = add_device(config, *kind, n, n <= n_threads ? cpu_ids : NULL, &d, err);
    }
    if (status != MR_OK) {
        mr_devices_destroy(&d);
        return status;
    }
    *out = d;
    return MR_OK;
}

mr_devices mr_devices_for(const mr_devices *devices, bool fast_numerics) {
    mr_devices out = devices ? *devices : (mr_devices){0};
    mr_backends *list = &out.list;
    int32_t n = list->n;
    list->n = 0;
    for (int32_t i = 0; i < n; i++) {
        mr_device_info info;
        list->at[i]->ops->describe(list->at[i], &info);
        if (!fast_numerics && !info.exact)
            continue;
        list->at[list->n] = list->at[i];
        list->rates[list->n] = list->rates[i];
        list->whole_layers[list->n] = list->whole_layers[i];
        list->host_experts[list->n] = list->host_experts[i];
        list->cold_partitions[list->n] = list->cold_partitions[i];
        list->device_experts[list->n] = list->device_experts[i];
        memmove(list->min_rows[list->n++], list->min_rows[i], sizeof list->min_rows[i]);
    }
    out.is_measured = out.is_measured && list->n > 0;
    return out;
}

int32_t mr_devices_holder(const mr_backends *list) {
    for (int32_t i = 0; i < list->n; i++) {
        mr_device_info info;
        list->at[i]->ops->describe(list->at[i], &info);
        if (!info.host_addressable)
            return i;
    }
    return -1;
}

void mr_devices_hold(mr_backends *list, mr_devices_share share) {
    int32_t i = mr_devices_holder(list);
    list->whole_layers[i] = share.n_layers;
    list->host_experts[i] = share.n_host_experts;
    list->device_experts[i] = share.n_device_experts;
    list->cold_partitions[i] = share.n_cold_partitions;
}

void mr_devices_leave_out(mr_devices *d, int32_t idx, const char *why) {
    mr_backends *list = &d->list;
    mr_device_info info;
    list->at[idx]->ops->describe(list->at[idx], &info);
    warn(info.name, why);
    mr_backend_destroy(list->at[idx]);
    list->n--;
    for (int32_t i = idx; i < list->n; i++) /* rates and layers are chosen later */
        list->at[i] = list->at[i + 1];
    d->is_measured = d->is_measured && list->n > 0;
}

void mr_devices_destroy(mr_devices *d) {
    for (int32_t b = 0; b < d->list.n; b++)
        mr_backend_destroy(d->list.at[b]);
    *d = (mr_devices){0};
}
