/* The environment: values of options, and warnings of variables that mean nothing here. Kubernetes and the links of
 * Docker set variables for each service that a container may use. Those of a service with the name "millrace" begin
 * with MILLRACE_, and MILLRACE_PORT=tcp://HOST:PORT among them has the name of an option's variable. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <regex.h>
#include <string.h>

#include "coordinator/console/options.h"
#include "engine/base/str.h"

#define VARIABLE_PREFIX "MILLRACE_"
#define NAME_OF_ADDRESS "_PORT"

/* Sources: the documentation of Kubernetes (accessing services: environment variables) and of Docker (legacy container
 * links). */
static const char SERVICE[] = "^" VARIABLE_PREFIX "([^=]*_)?("
                              "SERVICE_HOST=|SERVICE_PORT=|SERVICE_PORT_[^=]*=|"
                              "PORT_[0-9]+_(TCP|UDP|SCTP)(_ADDR|_PORT|_PROTO|_START|_END)?=|"
                              "PORT=(tcp|udp|sctp)://.+:[0-9]+$|"
                              "NAME=/.+/|ENV_[^=]+=)";

static const char *const VARIABLES[] = {
#define VARIABLE(name, help) name,
#include "coordinator/console/options.def"
#undef VARIABLE
};
enum { N_VARIABLES = sizeof VARIABLES / sizeof VARIABLES[0] };

/* Whether Kubernetes or Docker sets such a variable for a service. */
static bool is_of_service(const char *entry) {
    regex_t form;
    if (regcomp(&form, SERVICE, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    bool matches = regexec(&form, entry, 0, NULL, 0) == 0;
    regfree(&form);
    return matches;
}

/* The value, if this is the entry of the variable. NULL: another variable, or an empty one, which counts as not set. */
static const char *value_of(const char *entry, const char *variable) {
    size_t n = strlen(variable);
    return strncmp(entry, variable, n) == 0 && entry[n] == '=' && entry[n + 1] ? entry + n + 1 : NULL;
}

/* Whether the command has an option of this variable that the command line does not give. */
static bool is_read(const mr_options *o, mr_option_id id) {
    const mr_option_spec *spec = mr_option_spec_of(id);
    return spec->environment && spec->commands & 1u << o->command && !o->values[id].is_argument;
}

mr_status options_read_variables(mr_options *o, char *const *environ, mr_err *err) {
    mr_status status = MR_OK;
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        const mr_option_spec *spec = mr_option_spec_of((mr_option_id)i);
        for (size_t e = 0; is_read(o, (mr_option_id)i) && environ[e] && status == MR_OK; e++) {
            const char *value = value_of(environ[e], spec->environment);
            if (!value || is_of_service(environ[e]))
                continue;
            o->values[i].given = true;
            status = option_value_parse(spec, spec->environment, value, &o->values[i], err);
        }
    }
    return status;
}

/* A variable of a service that has the name of an option's variable is named. All others of services are silent. */
static bool warn_of_service(const mr_options *o, const char *entry, mr_err *out) {
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        const mr_option_spec *spec = mr_option_spec_of((mr_option_id)i);
        const char *value = is_read(o, (mr_option_id)i) ? value_of(entry, spec->environment) : NULL;
        if (!value)
            continue;
        char service[64];
        int n = (int)(strlen(spec->environment) - strlen(NAME_OF_ADDRESS));
        snprintf(service, sizeof service, "%.*s", n, spec->environment);
        for (char *c = service; *c; c++)
            *c = (char)(*c == '_' ? '-' : tolower((unsigned char)*c));
        (void)mr_err_set(out, MR_E_INVALID,
                         "%s=%.80s is the address of the service \"%s\", which Kubernetes or Docker sets, and not the "
                         "value of --%s; it is not used; hint: enableServiceLinks: false in the pod, or --%s",
                         spec->environment, value, service, spec->flag, spec->flag);
        return true;
    }
    return false;
}

static bool warn_of_unknown(const char *entry, mr_err *out) {
    const char *names[MR_OPTION_COUNT + N_VARIABLES];
    size_t n = sizeof names / sizeof names[0], len = strcspn(entry, "=");
    for (int i = 0; i < MR_OPTION_COUNT; i++)
        names[i] = mr_option_spec_of((mr_option_id)i)->environment;
    memcpy(names + MR_OPTION_COUNT, VARIABLES, sizeof VARIABLES);
    for (size_t i = 0; i < n; i++)
        if (names[i] && mr_str_is((mr_str){entry, len}, names[i]))
            return false;
    const char *nearest = option_nearest(entry, len, names, n);
    (void)mr_err_set(out, MR_E_INVALID, "unknown environment variable %.*s%s%s%s", len < 80 ? (int)len : 80, entry,
                     nearest ? "; hint: did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return true;
}

bool mr_options_next_warning(const mr_options *o, char *const *environ, size_t *pos, mr_err *out) {
    while (environ[*pos]) {
        const char *entry = environ[(*pos)++];
        if (strncmp(entry, VARIABLE_PREFIX, strlen(VARIABLE_PREFIX)) == 0 &&
            (is_of_service(entry) ? warn_of_service(o, entry, out) : warn_of_unknown(entry, out)))
            return true;
    }
    return false;
}
