// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/host_list.h"

#include <inttypes.h>
#include <string.h>

#include "coordinator/lobby/facts.h"
#include "coordinator/planning/described_host.h"
#include "coordinator/planning/quantities.h"
#include "engine/base/mem.h"

enum { LINE_BYTES = 512 };
static const double LINK_BYTES_S = 1.25e9, LATENCY_S = 50e-6; /* where a line does not say */
static const char BLANKS[] = " \t\r\n", NAME[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";

bool host_list_is(mr_str text) {
    size_t i = 0;
    while (i < text.len && strchr(BLANKS, text.data[i]))
        i++;
    return i < text.len && (text.data[i] == '#' || strchr(NAME, text.data[i]));
}

/* Reads a line with a host. */
static mr_status read_host(const char *line, mr_described_host *out, mr_err *err) {
    size_t len = strspn(line, NAME);
    const char *bad = line;
    int32_t bad_len = (int32_t)strcspn(line, BLANKS);
    *out = (mr_described_host){.link_bytes_s = LINK_BYTES_S, .latency_s = LATENCY_S};
    const mr_quantity known[] = {{"mem", MR_UNIT_BYTES, &out->memory_bytes},
                                 {"bw", MR_UNIT_BYTES_PER_SECOND, &out->read_bytes_s},
                                 {"ops", MR_UNIT_PER_SECOND, &out->operations_s},
                                 {"link", MR_UNIT_BYTES_PER_SECOND, &out->link_bytes_s},
                                 {"latency", MR_UNIT_SECONDS, &out->latency_s}};
    if (len == 0 || len >= sizeof out->name || len != (size_t)bad_len)
        return mr_err_set(err, MR_E_FORMAT, "%.*s is no name of a host; hint: up to %zu letters, digits, . _ : and -",
                          bad_len < 100 ? bad_len : 100, bad, sizeof out->name - 1);
    memcpy(out->name, line, len);
    if (!mr_quantities_read(line + len, known, sizeof known / sizeof known[0], &bad, &bad_len))
        return mr_err_set(err, MR_E_FORMAT,
                          "%.*s is none of mem=64GB, bw=80GB/s, ops=2T, link=1.25GB/s and latency=50us", bad_len, bad);
    if (out->memory_bytes > 0 && out->read_bytes_s > 0)
        return MR_OK;
    return mr_err_set(err, MR_E_FORMAT, "%s has no %s", out->name,
                      out->memory_bytes > 0 ? "bw; hint: bw=80GB/s" : "mem; hint: mem=64GB");
}

/* Copies a line without its end. */
static mr_status take_line(mr_str *rest, char out[LINE_BYTES], mr_err *err) {
    const char *end = memchr(rest->data, '\n', rest->len);
    size_t n = end ? (size_t)(end - rest->data) : rest->len, behind = end ? n + 1 : n;
    if (n >= LINE_BYTES)
        return mr_err_set(err, MR_E_FORMAT, "it has more than %d bytes", LINE_BYTES - 1);
    memcpy(out, rest->data, n);
    out[n] = 0;
    *rest = (mr_str){rest->data + behind, rest->len - behind};
    return MR_OK;
}

/* Reads all lines into out, [MR_MAX_STAGES]. */
static mr_status read_hosts(mr_str rest, mr_described_host *out, int32_t *out_n, mr_err *err) {
    char line[LINE_BYTES];
    *out_n = 0;
    for (int32_t number = 1; rest.len > 0; number++) {
        mr_status status = take_line(&rest, line, err);
        const char *text = line + strspn(line, BLANKS);
        if (status == MR_OK && (*text == 0 || *text == '#'))
            continue;
        if (status == MR_OK && *out_n == MR_MAX_STAGES)
            status = mr_err_set(err, MR_E_FORMAT, "there are more than %d hosts", MR_MAX_STAGES);
        if (status == MR_OK)
            status = read_host(text, &out[*out_n], err);
        for (int32_t i = 0; i < *out_n && status == MR_OK; i++)
            if (strcmp(out[i].name, out[*out_n].name) == 0)
                status = mr_err_set(err, MR_E_FORMAT, "%s is there twice", out[i].name);
        if (status != MR_OK)
            return mr_err_prefix(err, "line %" PRId32, number);
        ++*out_n;
    }
    return *out_n > 0 ? MR_OK : mr_err_set(err, MR_E_FORMAT, "there is no host in it");
}

/* Makes facts of n hosts. */
static mr_status make_facts(const mr_described_host *hosts, int32_t n, const mr_gguf *gguf, const mr_model_info *info,
                            mr_type kv_type, plan_file *out, mr_err *err) {
    mr_facts f;
    mr_status status = mr_facts_init(&f, gguf, info, n, err);
    if (status != MR_OK)
        return status;
    for (int32_t a = 0; a < n; a++) {
        mr_described_host_facts(&hosts[a], gguf, info, &f.view, kv_type, &f.ranks[a]);
        for (int32_t b = 0; b < n; b++)
            f.links[(size_t)a * (size_t)n + (size_t)b] = mr_described_host_link(&hosts[a], &hosts[b]);
    }
    *out = (plan_file){.n_layers = info->n_layers,
                       .has_facts = true,
                       .facts = f.view,
                       .kind = f.kind,
                       .ranks = f.ranks,
                       .links = f.links};
    return MR_OK;
}

mr_status host_list_parse(mr_str text, const char *path, const mr_gguf *gguf, const mr_model_info *info,
                          mr_type kv_type, plan_file *out, mr_err *err) {
    mr_described_host *hosts = mr_alloc_array(MR_MAX_STAGES, sizeof *hosts);
    int32_t n = 0;
    mr_status status = MR_OK;
    if (!hosts)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory to read %.160s", path);
    else if (read_hosts(text, hosts, &n, err) != MR_OK)
        status = mr_err_prefix(err, "%.160s", path);
    if (status == MR_OK)
        status = make_facts(hosts, n, gguf, info, kv_type, out, err);
    mr_free(hosts);
    return status;
}
