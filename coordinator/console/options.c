/* The table of options.def as C data, and the parser of argv. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/options.h"

#include <string.h>

#include "engine/base/mem.h"

enum {
    IN_GENERATE = 1 << MR_COMMAND_GENERATE,
    IN_LOGITS = 1 << MR_COMMAND_LOGITS,
    IN_PERPLEXITY = 1 << MR_COMMAND_PERPLEXITY,
    IN_PROFILE = 1 << MR_COMMAND_PROFILE,
    IN_TOKENIZE = 1 << MR_COMMAND_TOKENIZE,
    IN_INSPECT = 1 << MR_COMMAND_INSPECT,
    IN_PLAN = 1 << MR_COMMAND_PLAN,
    IN_BENCH = 1 << MR_COMMAND_BENCH,
    IN_SIMULATE = 1 << MR_COMMAND_SIMULATE,
    IN_SERVE = 1 << MR_COMMAND_SERVE,
    IN_BATCH = 1 << MR_COMMAND_BATCH,
    IN_CHAT = 1 << MR_COMMAND_CHAT,
    IN_SAMPLING = IN_GENERATE | IN_SERVE | IN_BATCH | IN_CHAT,
    /* commands that cut the model into stages */
    IN_RUN = IN_GENERATE | IN_LOGITS | IN_PERPLEXITY | IN_PROFILE | IN_PLAN | IN_BENCH | IN_SIMULATE | IN_SERVE |
             IN_BATCH | IN_CHAT,
    /* commands whose stages may be ranks */
    IN_RANKS =
        IN_GENERATE | IN_LOGITS | IN_PERPLEXITY | IN_PROFILE | IN_PLAN | IN_BENCH | IN_SERVE | IN_BATCH | IN_CHAT,
    IN_ALL = (1 << MR_COMMAND_COUNT) - 1,
};

static const mr_option_spec SPECS[MR_OPTION_COUNT] = {
#define OPTION(id, commands_, flag_, letter_, environment_, type_, value_, def_, shown_, min_, max_, help_)            \
    [MR_OPTION_##id] = {.flag = flag_,                                                                                 \
                        .environment = environment_,                                                                   \
                        .value = value_,                                                                               \
                        .def = def_,                                                                                   \
                        .shown = shown_,                                                                               \
                        .help = help_,                                                                                 \
                        .min = min_,                                                                                   \
                        .max = max_,                                                                                   \
                        .commands = commands_,                                                                         \
                        .type = MR_OPTION_TYPE_##type_,                                                                \
                        .letter = letter_},
#include "coordinator/console/options.def"
#undef OPTION
};

static const mr_command_spec COMMANDS[MR_COMMAND_COUNT] = {
#define COMMAND(id, name_, arguments_, summary_, about_, examples_)                                                    \
    [MR_COMMAND_##id] = {name_, arguments_, summary_, about_, examples_},
#include "coordinator/console/options.def"
#undef COMMAND
};

const mr_option_spec *mr_option_spec_of(mr_option_id id) {
    return &SPECS[id];
}

const mr_command_spec *mr_command_spec_of(mr_command command) {
    return &COMMANDS[command];
}

bool mr_options_given(const mr_options *o, mr_option_id id) {
    return o->values[id].given;
}

int64_t mr_options_number(const mr_options *o, mr_option_id id) {
    return o->values[id].number;
}

double mr_options_real(const mr_options *o, mr_option_id id) {
    return o->values[id].real;
}

const char *mr_options_text(const mr_options *o, mr_option_id id) {
    return o->values[id].text;
}

void mr_options_deinit(mr_options *o) {
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        mr_free(o->values[i].list);
        mr_free(o->values[i].ints);
        o->values[i].list = NULL;
        o->values[i].ints = NULL;
    }
}

/* --- Names that were not known ----------------------------------------------------------------------------------- */

enum { MAX_NAME = 64 };

/* Insertions, deletions and changes from a to b (Levenshtein); names longer than MAX_NAME are far from all. Two letters
 * that changed places count as two. */
static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len) {
    size_t row[MAX_NAME + 1];
    if (a_len > MAX_NAME || b_len > MAX_NAME)
        return MAX_NAME;
    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t step = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = change < step ? change : step;
        }
    }
    return row[b_len];
}

const char *option_nearest(const char *name, size_t len, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t best_distance = 1 + (len > 8 ? len / 3 : len > 3 ? 2 : 1);
    for (size_t i = 0; i < n; i++) {
        size_t d = names[i] ? distance(name, len, names[i], strlen(names[i])) : MAX_NAME;
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

static mr_status unknown_command(const char *name, mr_err *err) {
    const char *names[MR_COMMAND_COUNT];
    for (int i = 0; i < MR_COMMAND_COUNT; i++)
        names[i] = COMMANDS[i].name;
    const char *nearest = option_nearest(name, strlen(name), names, MR_COMMAND_COUNT);
    if (nearest)
        return mr_err_set(err, MR_E_INVALID, "unknown command \"%.80s\"; hint: did you mean %s?", name, nearest);
    return mr_err_set(err, MR_E_INVALID, "unknown command \"%.80s\"; hint: millrace --help lists the commands", name);
}

/* -m and --model are how other programs name the model. */
static bool names_model(const char *name, size_t len) {
    return (len == 1 && *name == 'm') || (len == 5 && memcmp(name, "model", len) == 0);
}

static mr_status model_is_argument(mr_command command, mr_err *err) {
    const char *name = COMMANDS[command].name;
    return mr_err_set(err, MR_E_INVALID, "%s takes the model file without an option; hint: millrace %s FILE", name,
                      name);
}

static mr_status unknown_option(mr_command command, const char *name, size_t len, mr_err *err) {
    const char *names[MR_OPTION_COUNT], *command_name = COMMANDS[command].name;
    int shown = len < 80 ? (int)len : 80;
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        bool same = strlen(SPECS[i].flag) == len && memcmp(SPECS[i].flag, name, len) == 0;
        if (same && !(SPECS[i].commands & 1u << command))
            return mr_err_set(err, MR_E_INVALID, "%s has no option --%.*s; hint: only other commands have it",
                              command_name, shown, name);
        names[i] = SPECS[i].commands & 1u << command ? SPECS[i].flag : NULL;
    }
    if (names_model(name, len))
        return model_is_argument(command, err);
    const char *nearest = option_nearest(name, len, names, MR_OPTION_COUNT);
    if (nearest)
        return mr_err_set(err, MR_E_INVALID, "unknown option --%.*s; hint: did you mean --%s?", shown, name, nearest);
    return mr_err_set(err, MR_E_INVALID, "unknown option --%.*s; hint: millrace %s --help lists the options", shown,
                      name, command_name);
}

/* --- The command line -------------------------------------------------------------------------------------------- */

typedef struct arg_reader {
    char *const *argv;
    int argc, next;
} arg_reader;

/* Sets an option from the attached value, or from the next argument where attached is NULL. name: the option as the
 * user wrote it. */
static mr_status take_option(mr_options *o, mr_option_id id, const char *name, const char *attached, arg_reader *args,
                             mr_err *err) {
    const mr_option_spec *spec = &SPECS[id];
    const char *text = attached;
    if (!text && spec->type == MR_OPTION_TYPE_FLAG)
        text = "on";
    if (!text && args->next == args->argc)
        return mr_err_set(err, MR_E_INVALID, "%s needs a value: %s", name, spec->value);
    if (!text)
        text = args->argv[args->next++];
    o->values[id].given = o->values[id].is_argument = true;
    return option_value_parse(spec, name, text, &o->values[id], err);
}

/* Parses "--name" or "--name=value". */
static mr_status parse_long(mr_options *o, const char *arg, arg_reader *args, mr_err *err) {
    const char *name = arg + 2;
    size_t len = strcspn(name, "=");
    const char *attached = name[len] ? name + len + 1 : NULL;
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        if (!(SPECS[i].commands & 1u << o->command) || strlen(SPECS[i].flag) != len ||
            memcmp(SPECS[i].flag, name, len) != 0)
            continue;
        char shown[MAX_NAME + 3];
        snprintf(shown, sizeof shown, "--%s", SPECS[i].flag);
        return take_option(o, (mr_option_id)i, shown, attached, args, err);
    }
    return unknown_option(o->command, name, len, err);
}

/* Parses "-n" or "-n5". */
static mr_status parse_short(mr_options *o, const char *arg, arg_reader *args, mr_err *err) {
    const char *attached = arg[2] ? arg + 2 : NULL;
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        if (SPECS[i].letter != arg[1] || !(SPECS[i].commands & 1u << o->command))
            continue;
        if (attached && SPECS[i].type == MR_OPTION_TYPE_FLAG)
            break;
        return take_option(o, (mr_option_id)i, (char[]){'-', arg[1], 0}, attached, args, err);
    }
    if (names_model(arg + 1, 1))
        return model_is_argument(o->command, err);
    const char *command = COMMANDS[o->command].name;
    return mr_err_set(err, MR_E_INVALID, "unknown option %.80s; hint: millrace %s --help lists the options", arg,
                      command);
}

static mr_status parse_arguments(mr_options *o, arg_reader *args, mr_err *err) {
    bool only_arguments = false;
    mr_status status = MR_OK;
    while (args->next < args->argc && status == MR_OK && !o->values[MR_OPTION_HELP].number) {
        const char *arg = args->argv[args->next++];
        if (!only_arguments && strcmp(arg, "--") == 0)
            only_arguments = true;
        else if (!only_arguments && arg[0] == '-' && arg[1] == '-')
            status = parse_long(o, arg, args, err);
        else if (!only_arguments && arg[0] == '-' && arg[1])
            status = parse_short(o, arg, args, err);
        else if (o->n_arguments < MR_OPTIONS_MAX_ARGUMENTS)
            o->arguments[o->n_arguments++] = arg;
        else
            status = mr_err_set(err, MR_E_INVALID,
                                "\"%.80s\" is one argument too many; hint: put a text with spaces in quotes", arg);
    }
    return status;
}

/* Of options that the command line does not have. */
static mr_status parse_defaults(mr_options *o, mr_err *err) {
    mr_status status = MR_OK;
    for (int i = 0; i < MR_OPTION_COUNT && status == MR_OK; i++)
        if (SPECS[i].def && !o->values[i].is_argument)
            status = option_value_parse(&SPECS[i], SPECS[i].flag, SPECS[i].def, &o->values[i], err);
    return status;
}

/* Makes the option not given. For options without a default. */
static void forget(mr_options *o, mr_option_id id) {
    mr_free(o->values[id].list);
    mr_free(o->values[id].ints);
    o->values[id] = (mr_option_value){0};
}

/* Drops values that come from environment variables and do not fit the command line or the command. A variable is set
 * for many runs, so such a value is no error. Two options of the command line that exclude each other are an error,
 * which the command reports. */
static void ignore_variables(mr_options *o) {
    static const mr_option_id BESIDE_PLAN[] = {MR_OPTION_STAGES, MR_OPTION_CUT, MR_OPTION_SYNTHETIC_STAGE};
    const mr_option_value *plan = &o->values[MR_OPTION_PLAN_FILE];
    for (size_t i = 0; i < sizeof BESIDE_PLAN / sizeof BESIDE_PLAN[0]; i++) {
        const mr_option_value *other = &o->values[BESIDE_PLAN[i]];
        if (plan->given && other->given && !other->is_argument)
            forget(o, BESIDE_PLAN[i]);
        else if (plan->given && other->given && !plan->is_argument)
            forget(o, MR_OPTION_PLAN_FILE);
    }
    bool is_load = o->values[MR_OPTION_LOAD].given || o->values[MR_OPTION_LOAD_TRACE].given;
    if (o->command == MR_COMMAND_BENCH && !is_load && !o->values[MR_OPTION_SEQUENCES].is_argument)
        forget(o, MR_OPTION_SEQUENCES);
}

/* Parses the first argument: the name of a command, or an option that needs no command. next: the second argument, or
 * NULL. */
static mr_status parse_command(mr_options *o, const char *arg, const char *next, mr_err *err) {
    o->version = strcmp(arg, "--version") == 0;
    o->markdown = strcmp(arg, "--options") == 0;
    bool help = strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0 || strcmp(arg, "help") == 0;
    o->values[MR_OPTION_HELP].number = help;
    if (help && next && next[0] != '-')
        arg = next;
    else if (help || o->version || o->markdown)
        return MR_OK;
    if (arg[0] == '-')
        return mr_err_set(err, MR_E_INVALID,
                          "\"%.80s\" stands in the place of a command; hint: millrace --help lists the commands", arg);
    for (int i = 0; i < MR_COMMAND_COUNT; i++)
        if (strcmp(arg, COMMANDS[i].name) == 0)
            o->command = (mr_command)i;
    return o->command == MR_COMMAND_COUNT ? unknown_command(arg, err) : MR_OK;
}

mr_status mr_options_parse(int argc, char *const *argv, char *const *environ, mr_options *out, mr_err *err) {
    *out = (mr_options){.command = MR_COMMAND_COUNT};
    if (argc < 2)
        return mr_err_set(err, MR_E_INVALID, "no command was given; hint: millrace --help lists the commands");
    mr_status status = parse_command(out, argv[1], argc > 2 ? argv[2] : NULL, err);
    if (status != MR_OK || out->command == MR_COMMAND_COUNT)
        return status;
    /* --help works even if other arguments or the environment are wrong. */
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0)
            out->values[MR_OPTION_HELP].number = 1;
    if (out->values[MR_OPTION_HELP].number)
        return MR_OK;
    arg_reader args = {.argv = argv, .argc = argc, .next = 2};
    status = parse_arguments(out, &args, err);
    if (status == MR_OK)
        status = parse_defaults(out, err);
    if (status == MR_OK)
        status = options_read_variables(out, environ, err);
    if (status == MR_OK)
        ignore_variables(out);
    return status;
}
