/* Writes the help texts and coordinator/OPTIONS.md from the table in options.def. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/console/options.h"

enum { OPTION_COLUMN = 26, VARIABLE_COLUMN = 25, END_COLUMN = 80, MAX_LINE = 512 };

typedef struct group {
    mr_option_id first;
    const char *title;
} group;

/* A group ends where the next one begins. The last group ends at MR_OPTION_COUNT. */
static const group GROUPS[] = {
#define GROUP(id, title) {MR_OPTION_##id, title},
#include "coordinator/console/options.def"
#undef GROUP
    {MR_OPTION_COUNT, NULL}};

/* Wraps text between the columns `from` and END_COLUMN. at: the column of the cursor. A newline in text ends a line. */
static void put_wrapped(FILE *f, int at, size_t from, const char *text) {
    if (at > 0 && (size_t)at + 2 > from) {
        fputc('\n', f);
        at = 0;
    }
    fprintf(f, "%*s", at > 0 ? (int)from - at : (int)from, "");
    size_t column = from;
    for (const char *word = text; *word;) {
        size_t len = strcspn(word, " \n");
        if (column > from && column + 1 + len > END_COLUMN) {
            fprintf(f, "\n%*s", (int)from, "");
            column = from;
        } else if (column > from) {
            fputc(' ', f);
            column++;
        }
        fwrite(word, 1, len, f);
        column = word[len] == '\n' ? END_COLUMN : column + len;
        word += len + (word[len] != 0);
    }
    fputc('\n', f);
}

static const char *default_text(const mr_option_spec *spec) {
    if (spec->shown)
        return spec->shown;
    if (spec->def)
        return spec->def;
    return spec->type == MR_OPTION_TYPE_FLAG ? "off" : "none";
}

/* "default 0.8, 0 to 100, MILLRACE_TEMP" */
static void put_facts(const mr_option_spec *spec, char *out, size_t size) {
    char range[64];
    option_range_text(spec, range, sizeof range);
    snprintf(out, size, "default %s%s%s%s%s", default_text(spec), range[0] ? ", " : "", range,
             spec->environment ? ", " : "", spec->environment ? spec->environment : "");
}

static void put_option(FILE *f, const mr_option_spec *spec) {
    char facts[MAX_LINE / 2], help[MAX_LINE], letter[8] = "    ";
    if (spec->letter)
        snprintf(letter, sizeof letter, "-%c, ", spec->letter);
    int n = fprintf(f, "  %s--%s%s%s", letter, spec->flag, spec->value ? " " : "", spec->value ? spec->value : "");
    put_facts(spec, facts, sizeof facts);
    bool plain = spec->type == MR_OPTION_TYPE_FLAG && !spec->environment;
    snprintf(help, sizeof help, "%s%s%s%s", spec->help, plain ? "" : " (", plain ? "" : facts, plain ? "" : ")");
    put_wrapped(f, n, OPTION_COLUMN, help);
}

/* Writes the title of a group and those of its options that the command has. Without such options, nothing. */
static void put_group(FILE *f, const group *g, mr_command command) {
    bool any = false;
    for (mr_option_id i = g->first; i < g[1].first; i++) {
        const mr_option_spec *spec = mr_option_spec_of(i);
        if (!(spec->commands & 1u << command))
            continue;
        if (!any)
            fprintf(f, "\n%s:\n", g->title);
        any = true;
        put_option(f, spec);
    }
}

void mr_options_help(FILE *f) {
    fputs("usage: millrace COMMAND MODEL [OPTIONS]\n\n"
          "Runs GGUF language models, on one machine or with their layers spread over\n"
          "several. MODEL is a GGUF file; --demo in its place uses the demo model that\n"
          "comes with millrace.\n\n"
          "commands:\n",
          f);
    for (int i = 0; i < MR_COMMAND_COUNT; i++)
        fprintf(f, "  %-10s %s\n", mr_command_spec_of((mr_command)i)->name, mr_command_spec_of((mr_command)i)->summary);
    fputs("\noptions without a command:\n"
          "  --help     show this text; millrace COMMAND --help, or millrace help COMMAND,\n"
          "             explains a command and its options\n"
          "  --version  show the version\n"
          "  --options  show all options of all commands as a Markdown table\n"
          "\nenvironment variables without an option:\n",
          f);
#define VARIABLE(name, help) put_wrapped(f, fprintf(f, "  %s", name), VARIABLE_COLUMN, help);
#include "coordinator/console/options.def"
#undef VARIABLE
    fputs("\nexit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.\n"
          "\nexample:\n"
          "  millrace generate --demo -p \"Once upon a time\" --stages 3\n",
          f);
}

void mr_options_command_help(FILE *f, mr_command command) {
    const mr_command_spec *c = mr_command_spec_of(command);
    fprintf(f, "usage: millrace %s %s [OPTIONS]\n\n", c->name, c->arguments);
    put_wrapped(f, 0, 0, c->about);
    for (const group *g = GROUPS; g->title; g++)
        put_group(f, g, command);
    fprintf(f, "\nexamples:\n%s", c->examples);
}

/* Writes a cell of a Markdown table. A | in the text needs a backslash. */
static void put_cell(FILE *f, const char *text) {
    fputs("| ", f);
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', f);
        fputc(*text, f);
    }
    fputc(' ', f);
}

static void put_row(FILE *f, const mr_option_spec *spec) {
    char name[MAX_LINE], commands[MAX_LINE], range[64];
    size_t used = 0;
    commands[0] = 0;
    for (int i = 0; i < MR_COMMAND_COUNT; i++)
        if (spec->commands & 1u << i)
            used += (size_t)snprintf(commands + used, sizeof commands - used, "%s%s", used ? ", " : "",
                                     mr_command_spec_of((mr_command)i)->name);
    char letter[8] = "";
    if (spec->letter)
        snprintf(letter, sizeof letter, "-%c, ", spec->letter);
    snprintf(name, sizeof name, "`%s--%s%s%s`", letter, spec->flag, spec->value ? " " : "",
             spec->value ? spec->value : "");
    option_range_text(spec, range, sizeof range);
    bool all = spec->commands == (1u << MR_COMMAND_COUNT) - 1;
    put_cell(f, name);
    put_cell(f, all ? "all" : commands);
    put_cell(f, default_text(spec));
    put_cell(f, range);
    put_cell(f, spec->environment ? spec->environment : "");
    put_cell(f, spec->help);
    fputs("|\n", f);
}

void mr_options_document(FILE *f) {
    fputs("# Options\n\n"
          "Made by `millrace --options` from `coordinator/console/options.def`. An option on the command line "
          "overrides\nits environment variable, and the variable overrides the default.\n",
          f);
    for (const group *g = GROUPS; g->title; g++) {
        fprintf(f, "\n## %c%s\n\n", g->title[0] - 'a' + 'A', g->title + 1);
        fputs("| option | commands | default | range | variable | meaning |\n|---|---|---|---|---|---|\n", f);
        for (mr_option_id i = g->first; i < g[1].first; i++)
            put_row(f, mr_option_spec_of(i));
    }
    fputs("\n## Environment variables without an option\n\n| variable | meaning |\n|---|---|\n", f);
#define VARIABLE(name, help) fprintf(f, "| %s | %s |\n", name, help);
#include "coordinator/console/options.def"
#undef VARIABLE
}
