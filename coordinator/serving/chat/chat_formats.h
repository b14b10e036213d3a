/* coordinator/serving/chat/chat_formats.h - the forms in which models write tool calls, for the parser (chat_output.c)
 * and for the grammars that force a tool call (chat_tools.c). Internal to this folder.
 * A form is a pattern of literal text, white space and fields. White space stands for any white space where the output
 * is parsed, and for itself in a grammar. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_FORMATS_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_FORMATS_H

#include "coordinator/serving/chat/chat_output.h"

/* Fields of a pattern, as strings to be joined with literal text. */
#define PAT_NAME "\001"      /* of the function */
#define PAT_ID "\002"        /* of the call */
#define PAT_SKIP "\003"      /* up to the next literal, on the same line */
#define PAT_ARGS "\004"      /* a JSON object (or one inside a JSON string): the arguments */
#define PAT_CALL "\005"      /* a JSON object with name and arguments; more may follow */
#define PAT_CALLS "\006"     /* a list of such objects; the parser treats it like PAT_CALL */
#define PAT_LOOP "\007"      /* the part up to PAT_LOOP_END is repeated, once for each argument */
#define PAT_LOOP_END "\010"  /* of PAT_LOOP */
#define PAT_KEY "\016"       /* name of an argument */
#define PAT_VALUE "\017"     /* value of an argument, up to the next literal */
#define PAT_LINES "\020"     /* the same, with a newline on either side */
#define PAT_IS_TEXT "\021"   /* true or false: whether the value is text */
#define PAT_FULL_NAME "\022" /* functions.NAME:NUMBER, all of which is the id */
#define PAT_TYPE "\023"    /* of the value, in JSON's words: the value of a "string" is text, any other value is JSON */
#define PAT_NUMBER "\024"  /* digits, which count the calls */
#define PAT_TREE "\025"    /* PAT_VALUE; lists and objects are elements between marks, one in another */
#define PAT_KEY_END "\026" /* PAT_KEY once more, behind its value */
#define PAT_NAMED "\027"   /* a JSON list of objects with one key, which is the name; its value is the arguments */
#define PAT_PYTHON "\030"  /* a list of calls as Python writes them: [name(key=value, ...), ...] */
#define PAT_OBJECT "\031"  /* an object with bare keys, and texts between <|"|> */

#define GEMMA_QUOTE "<|\"|>" /* on either side of a text in PAT_OBJECT */

/* The same fields as bytes. */
enum {
    PART_NAME = 0001,
    PART_ID = 0002,
    PART_SKIP = 0003,
    PART_ARGS = 0004,
    PART_CALL = 0005,
    PART_CALLS = 0006,
    PART_LOOP = 0007,
    PART_LOOP_END = 0010,
    PART_KEY = 0016,
    PART_VALUE = 0017,
    PART_LINES = 0020,
    PART_IS_TEXT = 0021,
    PART_FULL_NAME = 0022,
    PART_TYPE = 0023,
    PART_NUMBER = 0024,
    PART_TREE = 0025,
    PART_KEY_END = 0026,
    PART_NAMED = 0027,
    PART_PYTHON = 0030,
    PART_OBJECT = 0031,
};

enum { PAT_MAX_CALLS = 3, PAT_MAX_DROPS = 7, PAT_MAX_BYTES = 320 };

typedef enum chat_id_style {
    CHAT_ID_OPENAI /* call_ and 24 more */,
    CHAT_ID_NINE /* Mistral: 9 letters and digits */
} chat_id_style;

struct chat_tool_calls {
    const char *name;
    const char *in_template[3]; /* a template with all these texts is of this form; the first entry that fits counts */
    /* Marks around all tool calls of an output, which a model may leave out; "": none. */
    const char *section, *section_end;
    const char *calls[PAT_MAX_CALLS]; /* tried in this order; grammars use the first */
    const char *before;  /* the marks in front of the section, in grammars; a prompt may end with some of them */
    const char *between; /* stands between two calls, in grammars; NULL: one call only, or a list holds all */
    const char *drops[PAT_MAX_DROPS]; /* marks of structure, which are left out of the content */
    const char *prompt_end;           /* the end of a prompt that is parsed as a part of the output; or NULL */
    const char *name_key, *args_key;  /* of PAT_CALL, in grammars; NULL: "name" and "arguments" */
    const char *skipped;              /* the text for PAT_SKIP, in grammars */
    const char *ends_reasoning;       /* reasoning ends in front of this mark of a call, too; or NULL */
    bool cdata;                       /* values may stand in CDATA sections */
    bool known_names;                 /* it is a tool call only where the name is that of a tool */
    chat_id_style ids;
};

struct chat_marks {
    const char *open, *close;
    const char *in_template; /* a template with this text has these marks; NULL: one with both marks has them */
};

/* Whether a byte of a pattern is a field. */
static inline bool pat_is_field(char c) {
    return (c >= 1 && c <= 8) || (c >= 14 && c <= 25);
}
static inline bool pat_is_space(char c) {
    return c == ' ' || c == '\n';
}
/* The number of literal bytes at p, up to white space, a field or the end. */
static inline size_t pat_literal_bytes(const char *p) {
    size_t n = 0;
    while (p[n] && !pat_is_field(p[n]) && !pat_is_space(p[n]))
        n++;
    return n;
}

#endif
