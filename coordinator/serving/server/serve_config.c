/* coordinator/serving/server/serve_config.c - reads the options of `millrace serve` into the configuration of the HTTP
 * server: keys, certificates, origins and limits. On SIGHUP the files of keys and certificates are read again. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <sys/stat.h>

#include "coordinator/console/output.h"
#include "coordinator/serving/server/serve.h"
#include "coordinator/serving/server/service_manager.h"
#include "engine/text/text_file.h"

enum { MAX_PEM_BYTES = 1 << 20, PING_S = 5 };

/* Reads a file with a certificate or a key. option: names the file in errors. */
static mr_status read_pem(const char *option, const char *path, mr_text_buf *out, mr_err *err) {
    mr_status status = mr_text_file_read(path, MAX_PEM_BYTES, out, err);
    if (status == MR_OK && out->len == 0)
        status = mr_err_set(err, MR_E_INVALID, "%.160s is empty", path);
    if (status == MR_OK)
        return MR_OK;
    err->status = status == MR_E_NO_MEMORY ? status : MR_E_INVALID; /* a wrong value of the option */
    return mr_err_prefix(err, status == MR_E_FORMAT ? "%s is no PEM" : "%s", option);
}

static mr_status read_tls(mr_serve_config *c, const mr_options *o, mr_err *err) {
    const char *cert = mr_options_text(o, MR_OPTION_TLS_CERT), *key = mr_options_text(o, MR_OPTION_TLS_KEY);
    if (!cert && !key)
        return MR_OK;
    if (!cert || !key)
        return mr_err_set(err, MR_E_INVALID, "%s alone is no TLS; hint: %s, too", cert ? "--tls-cert" : "--tls-key",
                          cert ? "--tls-key" : "--tls-cert");
    mr_status status = read_pem("--tls-cert", cert, &c->tls_cert, err);
    if (status == MR_OK)
        status = read_pem("--tls-key", key, &c->tls_key, err);
    c->http.tls_cert = c->tls_cert.data;
    c->http.tls_key = c->tls_key.data;
    return status;
}

mr_status mr_serve_config_read(mr_serve_config *c, const mr_options *o, mr_err *err) {
    const mr_option_value *origins = &o->values[MR_OPTION_CORS_ORIGIN];
    *c = (mr_serve_config){.http = {.host = mr_options_text(o, MR_OPTION_HOST),
                                    .port = (int)mr_options_number(o, MR_OPTION_PORT),
                                    .unix_path = mr_options_text(o, MR_OPTION_UNIX_SOCKET),
                                    .origins = origins->list,
                                    .n_origins = origins->n,
                                    .insecure = mr_options_number(o, MR_OPTION_INSECURE) != 0,
                                    .max_body_bytes = (size_t)mr_options_number(o, MR_OPTION_MAX_BODY),
                                    .max_connections = (int32_t)mr_options_number(o, MR_OPTION_MAX_CONNECTIONS),
                                    .client_timeout_s = (int32_t)mr_options_number(o, MR_OPTION_CLIENT_TIMEOUT_S),
                                    .ping_s = PING_S,
                                    .routes = serve_routes,
                                    .n_routes = serve_n_routes,
                                    .on_done = serve_count_request}};
    mr_status status = serve_keys_read(&c->keys, o, err);
    c->http.keys = c->keys.list;
    c->http.n_keys = c->keys.n;
    return status == MR_OK ? read_tls(c, o, err) : status;
}

/* Files that are read again on SIGHUP have to be regular files: reading a pipe again would block the server. */
static mr_status check_renewable(const mr_options *o, mr_err *err) {
    static const mr_option_id FILES[] = {MR_OPTION_API_KEY_FILE, MR_OPTION_TLS_CERT, MR_OPTION_TLS_KEY};
    struct stat st;
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) {
        const char *path = mr_options_text(o, FILES[i]);
        if (path && stat(path, &st) == 0 && !S_ISREG(st.st_mode))
            return mr_err_set(err, MR_E_INVALID, "%.160s is no regular file", path);
    }
    return MR_OK;
}

void mr_serve_renew(mr_serve *s) {
    mr_serve_config config = {0};
    mr_err err;
    service_manager_is_reloading();
    mr_status status = check_renewable(s->options, &err);
    if (status == MR_OK)
        status = mr_serve_config_read(&config, s->options, &err);
    if (status == MR_OK)
        status = mr_http_server_renew(s->http, &config.http, &err);
    mr_serve_config_deinit(&config);
    if (status == MR_OK)
        mr_output_note("SIGHUP: keys and certificate are those of the files now");
    else
        mr_output_warning("SIGHUP: keys and certificate stay as they were: %s", err.text);
    mr_service_manager_is_ready();
}

void mr_serve_config_deinit(mr_serve_config *c) {
    serve_keys_deinit(&c->keys);
    if (c->tls_key.data)
        explicit_bzero(c->tls_key.data, c->tls_key.cap); /* so that the key does not stay in freed memory */
    mr_text_buf_deinit(&c->tls_cert);
    mr_text_buf_deinit(&c->tls_key);
    *c = (mr_serve_config){0};
}
