/* coordinator/serving/chat/chat_parse.h - the inside of mr_chat_output: the text that has not been emitted, and the
 * tool call that may stand at its beginning. A tool call is tentative until its name is known and its arguments begin.
 * Until then its text is kept, and becomes content where the pattern does not fit. Internal to this folder.
 *   chat_output.c         content, reasoning, marks
 *   chat_tool_call.c      runs the pattern of a tool call
 *   chat_tool_call_json.c the field of a pattern that is JSON with name and arguments
 *   chat_tool_call_loose.c fields with values as Python and Gemma write them, which are turned into JSON
 *   chat_tool_call_tree.c values of elements in elements, which are turned into JSON
 *   chat_emit.c           deltas, ids, values of arguments
 *   chat_parse.c          what the unread text begins with */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_PARSE_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_PARSE_H

#include "coordinator/serving/chat/chat_formats.h"

enum {
    MAX_TENTATIVE_BYTES = 16384, /* a longer tentative call is content; this bounds how often text is read again */
    MAX_KEY_BYTES = 256,
    MAX_ID_BYTES = CHAT_MAX_NAME_BYTES + 32, /* "functions.", a name and a number */
    MAX_PROGRAMS = 2 * PAT_MAX_CALLS,
};

/* The result of one step of the parser. */
typedef enum chat_step {
    STEP_ON,    /* something was consumed or decided */
    STEP_MORE,  /* the text is not long enough to tell */
    STEP_NO,    /* the text does not fit */
    STEP_ERROR, /* o->status says which */
} chat_step;

/* State of a scan for the end of a JSON value, which looks at brackets and strings alone. */
typedef struct json_scan {
    int32_t depth;
    bool begun, in_text, escaped;
} json_scan;

enum { MAX_LOOSE_DEPTH = 64 };
typedef enum loose_next { LOOSE_FIRST, LOOSE_ELEMENT, LOOSE_COLON, LOOSE_VALUE, LOOSE_COMMA } loose_next;

/* State of the translation of one value of Python or Gemma into JSON. */
typedef struct loose_scan {
    int32_t depth;
    char closes[MAX_LOOSE_DEPTH]; /* the bracket that closes each level */
    bool is_object[MAX_LOOSE_DEPTH];
    loose_next next;   /* what comes next at the innermost level; LOOSE_ELEMENT: behind a comma */
    const char *quote; /* of the text at hand; NULL: outside texts */
    bool in_key;       /* the text at hand is a key */
} loose_scan;

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
    bool bare;      /* the form has no marks, or common ones: the name has to be a tool's, and arguments are required */
    bool open, done; /* open: a tool call has been begun and not ended; done: the last one has been ended */
    char name[MAX_ID_BYTES + 1], id[MAX_ID_BYTES + 1];
    json_scan scan;
    /* PAT_CALL */
    object_state state;
    object_key key;
    bool in_list;
    size_t kept, n_kept; /* place in o->in of arguments that stand before the name; n_kept 0: none */
    bool skips_args;     /* the skipped value is these arguments */
    bool named;          /* PAT_NAMED: the first key is the name */
    loose_scan loose;    /* PAT_PYTHON, PAT_OBJECT */
    /* PAT_LOOP */
    const char *loop;
    int32_t n_args;
    char arg[MAX_KEY_BYTES + 1];
    bool value_begun, is_text, is_json; /* is_text, is_json: by PAT_IS_TEXT of the pattern */
    bool escapes;                       /* the value is emitted at once, as the inside of a JSON string */
    mr_text_buf value;                  /* not escapes: the value so far */
    bool is_tree, is_cdata;             /* the value may have elements in it; the value stands in a CDATA section */
    int32_t tree_depth;                 /* the elements of the value that are open */
} tool_call_run;

struct mr_chat_output {
    mr_chat_output_desc desc; /* the texts in desc are not used after create */
    char *request_id;
    json_t *tools;
    char *programs[MAX_PROGRAMS]; /* patterns of calls, with the section in front and without */
    int n_programs;
    bool starts[256]; /* the bytes that marks begin with */
    mr_text_buf in;
    size_t pos, end;          /* the part of in that is to be read */
    size_t looked;            /* no mark begins before this position */
    size_t n_given;           /* bytes at the front of in that came from the prompt and are no content */
    bool ending;              /* end is the end of the output */
    bool in_reasoning, begun; /* begun: reasoning has text */
    bool at_border;           /* only white space since the beginning, a tool call or reasoning */
    bool any;                 /* a tool call, reasoning, structure or content has been found */
    bool after_tool_call;
    bool in_tool_call;
    int program, next_program; /* programs before next_program do not fit at `looked` */
    size_t before, start;      /* of the tentative call: where its unemitted text begins, and where its mark begins */
    tool_call_run run;
    int32_t n_tool_calls;
    mr_text_buf scratch;
    mr_status status; /* of STEP_ERROR */
    mr_err *err;
};

/* Runs one instruction of the pattern at o->pos, which is moved behind the text that was read. STEP_NO: the text does
 * not fit the pattern. STEP_ON with run.at at the end of the pattern: the tool call is complete. */
chat_step chat_tool_call_step(mr_chat_output *o);
void chat_tool_call_begin(mr_chat_output *o, int program, size_t start);
/* Reads on in the field PAT_CALL. */
chat_step chat_tool_call_json_step(mr_chat_output *o);
/* Reads on in the fields PAT_PYTHON and PAT_OBJECT. */
chat_step chat_tool_call_python_step(mr_chat_output *o);
chat_step chat_tool_call_object_step(mr_chat_output *o);
/* Appends a whole value of Python's or Gemma's notation as JSON. false: it is none, or no memory. */
bool chat_loose_to_json(mr_str text, mr_text_buf *to);
/* Appends elements as JSON, an object or a list: MARK<key>value or elementsMARK</key>... schema: of the value, or NULL.
 * false: the elements do not fit each other, or no memory. */
bool chat_tree_to_json(mr_str text, const char *mark, size_t n_mark, const json_t *schema, mr_text_buf *to);
/* Emit arguments while they arrive: a JSON object, or the inside of a JSON string that holds one. STEP_NO: this cannot
 * be JSON. */
chat_step chat_json_object_step(mr_chat_output *o, bool *out_done);
chat_step chat_json_text_step(mr_chat_output *o, bool *out_done);

bool chat_is_space(char c);
/* Of names, and of numbers and words in JSON. */
bool chat_is_name_byte(char c);
bool chat_is_word_byte(char c);
void chat_skip_space(mr_chat_output *o);
/* Compares the text at pos with a literal. STEP_ON: equal. STEP_MORE: the text ends inside the literal. STEP_NO: they
 * differ. */
chat_step chat_match(const mr_chat_output *o, size_t pos, const char *literal, size_t n);
/* Counts the bytes of a name or an id at pos; STEP_MORE: it may go on. */
chat_step chat_name_bytes(const mr_chat_output *o, size_t *out_n);
/* Decodes the escape at s, of which n bytes are there. Returns its length; 0: incomplete; -1: not an escape. */
int chat_unescape(const char *s, size_t n, char out[4], size_t *out_n);
/* Returns the bytes of data that belong to the value. *out_done: the value ends in data. *out_bad: it cannot be JSON.
 * */
size_t chat_json_scan_run(json_scan *s, const char *data, size_t n, bool *out_done, bool *out_bad);

/* Emit deltas (chat_emit.c). They return STEP_ON or STEP_ERROR, chat_emit_begin also STEP_NO. */
chat_step chat_emit(mr_chat_output *o, chat_delta_kind kind, mr_str text);
chat_step chat_emit_begin(mr_chat_output *o);
chat_step chat_emit_end(mr_chat_output *o);
chat_step chat_emit_arguments(mr_chat_output *o, const char *bytes, size_t n);
/* The beginning of an argument: brace or comma, and key. Decides how the value is written. */
chat_step chat_emit_arg_begin(mr_chat_output *o);
chat_step chat_emit_arg_bytes(mr_chat_output *o, const char *bytes, size_t n);
chat_step chat_emit_arg_end(mr_chat_output *o);
/* Appends the bytes escaped for the inside of a JSON string. false: no memory. */
bool chat_escape(mr_text_buf *out, const char *bytes, size_t n);
/* Appends a value that a model wrote as text, as JSON: as it stands where it is JSON of one of the types (a set of
 * CHAT_TYPE_), as a string otherwise. is_json: any type will do. false: no memory. */
bool chat_value_to_json(mr_str text, unsigned types, bool is_json, mr_text_buf *to);
chat_step chat_emit_scratch(mr_chat_output *o, bool made);
/* Shortens n so that s[0, n) does not end inside a character. s[n] must exist. */
size_t chat_whole_characters(const char *s, size_t n);

#endif
