/* coordinator/console/options.h - the command line and the MILLRACE_ environment variables, by the table of
 * options.def.
 * Owns:    an mr_options owns its lists, until deinit. Borrows: the texts of argv and of the environment.
 * Threads: bound to the main thread.
 * Errors:  MR_E_INVALID for a wrong command line or environment: the text names the option, the value and the allowed
 *          values. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_OPTIONS_H
#define MR_COORDINATOR_CONSOLE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/status.h"

typedef enum mr_command {
#define COMMAND(id, name, arguments, summary, about, examples) MR_COMMAND_##id,
#include "coordinator/console/options.def"
#undef COMMAND
    MR_COMMAND_COUNT, /* no command was named */
} mr_command;

typedef enum mr_option_id {
#define OPTION(id, commands, flag, letter, environment, type, value, def, shown, min, max, help) MR_OPTION_##id,
#include "coordinator/console/options.def"
#undef OPTION
    MR_OPTION_COUNT,
} mr_option_id;

typedef enum mr_option_type {
    MR_OPTION_TYPE_TEXT,
    MR_OPTION_TYPE_FILE,
    MR_OPTION_TYPE_LIST, /* of texts */
    MR_OPTION_TYPE_INT,
    MR_OPTION_TYPE_FLOAT,
    MR_OPTION_TYPE_FLAG,
    MR_OPTION_TYPE_SIZE,
    MR_OPTION_TYPE_CHOICE,
    MR_OPTION_TYPE_INTS,
} mr_option_type;

/* A line of the table. options.def explains the fields. */
typedef struct mr_option_spec {
    const char *flag, *environment, *value, *def, *shown, *help;
    double min, max;
    unsigned commands; /* bit 1 << mr_command */
    mr_option_type type;
    char letter;
} mr_option_spec;

typedef struct mr_command_spec {
    const char *name, *arguments, *summary, *about, *examples;
} mr_command_spec;

const mr_option_spec *mr_option_spec_of(mr_option_id id);
const mr_command_spec *mr_command_spec_of(mr_command command);

enum { MR_OPTIONS_MAX_ARGUMENTS = 2, MR_OPTIONS_MAX_INTS = 1023, MR_OPTIONS_MAX_LIST = 65536 };

typedef struct mr_option_value {
    bool given;       /* on the command line or in the environment */
    bool is_argument; /* on the command line */
    int64_t number;   /* INT, SIZE; FLAG: 0 or 1; CHOICE: index of the word */
    double real;      /* FLOAT */
    const char *text; /* TEXT, FILE, CHOICE; NULL: none */
    const char **list;
    int32_t *ints;
    int32_t n; /* of list or ints */
} mr_option_value;

typedef struct mr_options {
    mr_command command;
    bool version, markdown; /* --version and --options, without a command */
    mr_option_value values[MR_OPTION_COUNT];
    const char *arguments[MR_OPTIONS_MAX_ARGUMENTS]; /* arguments that are not options */
    int32_t n_arguments;
} mr_options;

/* Parses argv (argv[0] is the program) and environ. With --help, nothing else is checked. Call mr_options_deinit(out)
 * also after an error. */
MR_MUST_USE mr_status mr_options_parse(int argc, char *const *argv, char *const *environ, mr_options *out, mr_err *err);
void mr_options_deinit(mr_options *o);

bool mr_options_given(const mr_options *o, mr_option_id id);
/* The value of an INT, SIZE, FLAG or CHOICE. */
int64_t mr_options_number(const mr_options *o, mr_option_id id);
double mr_options_real(const mr_options *o, mr_option_id id);
/* NULL: the option was not given and has no default. */
const char *mr_options_text(const mr_options *o, mr_option_id id);

/* Finds the next variable, from environ[*pos] on, that begins with MILLRACE_ and that nobody reads: an unknown one, or
 * an address that Kubernetes set under the name of an option's variable. The text of *out says so. false: no more. */
bool mr_options_next_warning(const mr_options *o, char *const *environ, size_t *pos, mr_err *out);

/* The texts of millrace --help and of millrace COMMAND --help. */
void mr_options_help(FILE *f);
void mr_options_command_help(FILE *f, mr_command command);
/* The document coordinator/OPTIONS.md. */
void mr_options_document(FILE *f);

/* The functions below are internal to options*.c. */

/* Parses text into out. name: the option as the user wrote it. */
MR_MUST_USE mr_status option_value_parse(const mr_option_spec *spec, const char *name, const char *text,
                                         mr_option_value *out, mr_err *err);
/* Reads the variables of the command's options that the command line does not give. */
MR_MUST_USE mr_status options_read_variables(mr_options *o, char *const *environ, mr_err *err);
/* Writes a range such as "0 to 100", or nothing where the option has no range. */
void option_range_text(const mr_option_spec *spec, char *out, size_t size);
/* The one of names[n] that is most similar to name, or NULL where no name is similar. NULLs in names are skipped. */
const char *option_nearest(const char *name, size_t len, const char *const *names, size_t n);

#endif
