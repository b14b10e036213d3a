/* coordinator/serving/chat/chat_parse.h - the inside of mr_chat_output: the text that has come and is not given out
 * yet, and the call that may stand at its beginning. A call is tentative until its name and the first of its arguments
 * are there; until then its text is kept, and comes out as content where the pattern does not fit. Internal to this
 * folder.
 *   chat_output.c         content, reasoning, marks
 *   chat_tool_call.c      runs the pattern of a tool call
 *   chat_tool_call_json.c the field of a pattern that is JSON with name and arguments
 *   chat_emit.c           deltas, ids, values of arguments
 *   chat_parse.c          what the unread text begins with */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_PARSE_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_PARSE_H

#include "coordinator/serving/chat/chat_formats.h"

enum {
    MAX_TENTATIVE_BYTES = 16384, /* a longer one is content; so no text is read again more than this often */
    MAX_KEY_BYTES = 256,
    MAX_PROGRAMS = 2 * PAT_MAX_CALLS,
};

/* What one step came to. */
typedef enum chat_step {
    STEP_ON,    /* something was consumed or decided */
    STEP_MORE,  /* the text is not long enough to tell */
    STEP_NO,    /* it does not fit */
    STEP_ERROR, /* o->status */
} chat_step;

/* Finds the end of a JSON value by its brackets and strings alone. */
typedef struct json_scan {
    int32_t depth;
    bool begun, in_text, escaped;
} json_scan;

typedef enum object_state {
    OBJ_BEGIN,
    OBJ_KEY,
    OBJ_COLON,
    OBJ_VALUE,
    OBJ_ARGS,
    OBJ_ARGS_TEXT,
    OBJ_SKIP,
    OBJ_NEXT,
    OBJ_END
} object_state;
typedef enum object_key { KEY_OTHER, KEY_NAME, KEY_ID, KEY_ARGS } object_key;

typedef struct tool_call_run {
    const char *at; /* in the pattern */
    bool bare; /* its marks are none or common: the name has to be one of the tools, and arguments have to be there */
    bool open, done; /* a call is begun; the last one begun is ended */
    char name[CHAT_MAX_NAME_BYTES + 1], id[CHAT_MAX_NAME_BYTES + 1];
    json_scan scan;
    /* PAT_CALL */
    object_state state;
    object_key key;
    bool in_list;
    size_t kept, n_kept; /* arguments that came before the name, in o->in; n_kept 0: none */
    bool skips_args;     /* what is skipped are these */
    /* PAT_LOOP */
    const char *loop;
    int32_t n_args;
    char arg[MAX_KEY_BYTES + 1];
    bool value_begun, is_text, is_json; /* the latter two: what the pattern said of the value */
    bool escapes;                       /* the value comes out as it comes in, as the inside of a JSON string */
    mr_text_buf value;                  /* otherwise: what has come of it */
} tool_call_run;

struct mr_chat_output {
    mr_chat_output_desc desc; /* its texts are not used after create */
    char *request_id;
    json_t *tools;
    char *programs[MAX_PROGRAMS]; /* patterns of calls, with the section in front and without */
    int n_programs;
    bool starts[256]; /* bytes that a mark begins with */
    mr_text_buf in;
    size_t pos, end;          /* what is to be read of in */
    size_t looked;            /* no mark begins before this */
    size_t n_given;           /* bytes at the front of in that came from the prompt: they are no content */
    bool ending;              /* end is the end of the answer */
    bool in_reasoning, begun; /* begun: reasoning has text */
    bool at_border;           /* nothing but white space since the beginning, a call or reasoning */
    bool any;                 /* a call, reasoning, structure or content has come */
    bool after_tool_call;
    bool in_tool_call;
    int program, next_program; /* those before next_program do not fit at `looked` */
    size_t before, start;      /* of the tentative call: text that is not given out, and the mark */
    tool_call_run run;
    int32_t n_tool_calls;
    mr_text_buf scratch;
    mr_status status; /* of STEP_ERROR */
    mr_err *err;
};

/* Reads on in the call at o->pos. STEP_NO: it is none, or none any more; o->pos stands behind what is used up. STEP_ON
 * with run.at at the end of the pattern: it is complete. */
chat_step chat_tool_call_step(mr_chat_output *o);
void chat_tool_call_begin(mr_chat_output *o, int program, size_t start);
/* The field PAT_CALL. */
chat_step chat_tool_call_json_step(mr_chat_output *o);
/* Streams arguments that are a JSON object, or the inside of a JSON string that has one. STEP_NO: no JSON goes on here.
 * */
chat_step chat_json_object_step(mr_chat_output *o, bool *out_done);
chat_step chat_json_text_step(mr_chat_output *o, bool *out_done);

bool chat_is_space(char c);
bool chat_is_name_byte(char c);
void chat_skip_space(mr_chat_output *o);
/* How much of the literal stands at pos: STEP_ON all, STEP_MORE the beginning and then the text ends. */
chat_step chat_match(const mr_chat_output *o, size_t pos, const char *literal, size_t n);
/* Bytes of data up to the end of the value; *out_done where it is inside data; *out_bad where no JSON can go on. */
size_t chat_json_scan_run(json_scan *s, const char *data, size_t n, bool *out_done, bool *out_bad);

/* Deltas. They return STEP_ON or STEP_ERROR. */
chat_step chat_emit(mr_chat_output *o, chat_delta_kind kind, mr_str text);
chat_step chat_emit_begin(mr_chat_output *o);
chat_step chat_emit_end(mr_chat_output *o);
chat_step chat_emit_arguments(mr_chat_output *o, const char *bytes, size_t n);
/* The beginning of an argument: brace or comma, and key; finds out how its value comes. */
chat_step chat_emit_arg_begin(mr_chat_output *o);
chat_step chat_emit_arg_bytes(mr_chat_output *o, const char *bytes, size_t n);
chat_step chat_emit_arg_end(mr_chat_output *o);
/* The bytes without a part of a character at the end, where s[n] is there. */
size_t chat_whole_characters(const char *s, size_t n);

#endif
