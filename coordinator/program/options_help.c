/* Help texts and the document, from the table. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/program/options.h"

enum { HELP_COLUMN = 30, HELP_END = 110, MAX_LINE = 512 };

/* Writes text from HELP_COLUMN to HELP_END; the cursor stands in column `at`. */
static void put_wrapped(FILE *f, size_t at, const char *text) {
    if (at + 2 > HELP_COLUMN) {
        fputc('\n', f);
        at = 0;
    }
    fprintf(f, "%*s", (int)(HELP_COLUMN - at), "");
    size_t column = HELP_COLUMN;
    for (const char *word = text; *word;) {
        size_t len = strcspn(word, " ");
        if (column > HELP_COLUMN && column + 1 + len > HELP_END) {
            fprintf(f, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', f);
            column++;
        }
        fwrite(word, 1, len, f);
        column += len;
        word += len + (word[len] == ' ');
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
    put_wrapped(f, n > 0 ? (size_t)n : 0, help);
}

void mr_options_help(FILE *f) {
    fputs("usage: millrace COMMAND MODEL [OPTIONS]\n\n"
          "Runs GGUF language models, cut into stages. MODEL is a GGUF file, or --demo for the model that comes "
          "along.\n\n"
          "commands:\n",
          f);
    for (int i = 0; i < MR_COMMAND_COUNT; i++)
        fprintf(f, "  %-10s %s\n", mr_command_spec_of((mr_command)i)->name, mr_command_spec_of((mr_command)i)->summary);
    fputs("\noptions without a command:\n"
          "  --help     show this text; millrace COMMAND --help shows all of a command\n"
          "  --version  show the version\n"
          "  --options  show all options of all commands as a Markdown table\n"
          "\nenvironment variables without an option:\n",
          f);
#define VARIABLE(name, help) fprintf(f, "  %-22s %s\n", name, help);
#include "coordinator/program/options.def"
#undef VARIABLE
    fputs("\nexit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.\n"
          "\nexample:\n"
          "  millrace generate --demo -p \"Once upon a time\" --stages 3\n",
          f);
}

void mr_options_command_help(FILE *f, mr_command command) {
    const mr_command_spec *c = mr_command_spec_of(command);
    fprintf(f, "usage: millrace %s %s [OPTIONS]\n\n%s\n\noptions:\n", c->name, c->arguments, c->about);
    for (int i = 0; i < MR_OPTION_COUNT; i++)
        if (mr_option_spec_of((mr_option_id)i)->commands & 1u << command)
            put_option(f, mr_option_spec_of((mr_option_id)i));
    fprintf(f, "\nexamples:\n%s", c->examples);
}

/* In a cell of a Markdown table a bar needs a backslash. */
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
          "Made by `millrace --options` from [options.def](options.def). An option on the command line counts before "
          "its\n"
          "environment variable, and that before the default.\n\n"
          "| option | commands | default | range | variable | meaning |\n"
          "|---|---|---|---|---|---|\n",
          f);
    for (int i = 0; i < MR_OPTION_COUNT; i++)
        put_row(f, mr_option_spec_of((mr_option_id)i));
    fputs("\nEnvironment variables without an option:\n\n| variable | meaning |\n|---|---|\n", f);
#define VARIABLE(name, help) fprintf(f, "| %s | %s |\n", name, help);
#include "coordinator/program/options.def"
#undef VARIABLE
}
