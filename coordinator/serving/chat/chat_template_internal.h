/* coordinator/serving/chat/chat_template_internal.h - what a template can read, and messages in the form that it can
 * read. Internal to this folder. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_TEMPLATE_INTERNAL_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_TEMPLATE_INTERNAL_H

#include "coordinator/serving/chat/chat_output.h"
#include "coordinator/serving/chat/chat_template.h"
#include "coordinator/serving/jinja/jinja.h"

/* Where a template reads the reasoning of an answer: a member of the message, one of CHAT_REASONING_NAMES; or */
#define CHAT_REASONING_NAMES "reasoning_content", "reasoning", "thinking", "thought"
enum {
    CHAT_REASONING_PART = 4, /* a part of the content, of type "thinking" */
    CHAT_REASONING_MARKS,    /* the content, between the marks of the format */
    CHAT_REASONING_ANY,      /* nowhere, as far as the probe can see: it gets all names */
};

typedef struct chat_abilities {
    bool tools;               /* the template does not fail where there are tools */
    bool strings;             /* contents may be strings */
    bool parts;               /* contents may be lists of parts */
    bool system;              /* there is a role "system" */
    bool developer;           /* there is a role "developer" */
    bool two_systems;         /* the first two messages may be of the system */
    bool later_systems;       /* so may later ones */
    bool two_users;           /* two messages of the user may follow one another */
    bool two_answers;         /* a turn may have two answers without calls */
    bool user_behind_results; /* the user may speak behind results, without an answer between */
    bool object_tool_calls;   /* arguments of tool calls are objects, not JSON text */
    bool null_content;        /* beside tool calls the content may be null */
    bool empty_content;       /* beside tool calls the content may be empty */
    bool calls;               /* earlier calls and results need not become text */
    bool several_calls;       /* a message may have several calls */
    bool content_with_calls;  /* a message may have content and calls */
    bool calls_without_tools; /* there may be calls and results where there are no tools */
    bool long_ids;            /* the id of a call may be any text */
    bool think;               /* enable_thinking has to be set, because the template takes undefined for false */
    bool leaves_out_calls;    /* earlier tool calls have to be written into the content, in `format` */
    bool functions;           /* the template fails without the time and without tools as a text */
    bool keeps_reasoning;     /* of calls behind the last message of the user */
    int reasoning;            /* index in CHAT_REASONING_NAMES, or a CHAT_REASONING_ value */
    mr_chat_format format;
} chat_abilities;

/* One source, parsed and probed. */
typedef struct chat_source {
    mr_jinja *jinja; /* NULL: there is none */
    char *text;
    chat_abilities can;
} chat_source;

struct mr_chat_template {
    chat_source plain, with_tools;
    mr_chat_template_origin origin;
    char *bos_text, *eos_text;
};

/* Renders messages without adapting them. variables: the caller's; may be NULL. */
mr_status chat_source_render(const mr_chat_template *t, const chat_source *s, json_t *messages, const json_t *tools,
                             const json_t *variables, bool add_generation_prompt, mr_text_buf *out, mr_err *err);
/* chat_template_defaults.c. Sets the defaults, which the client's variables replace; false: no memory. tools may be
 * NULL. */
MR_MUST_USE bool chat_source_put_defaults(const chat_source *s, const json_t *tools, int64_t now_unix_s,
                                          json_t *variables);
/* Whether the template tests "not enable_thinking" and never tests whether the variable is defined. Undefined counts as
 * false there, so a reasoning model would not reason by default. */
bool chat_source_leaves_thinking_open(const char *source);
/* chat_template_probe.c. Fills s->can. MR_E_NO_MEMORY is the only error. */
mr_status chat_source_probe(const mr_chat_template *t, chat_source *s, mr_err *err);
/* chat_template_messages.c. Makes messages that the template can read of messages in the form of chat_messages.h; the
 * caller owns them. tools: of the request, or NULL. NULL: no memory. */
json_t *chat_messages_adapt(const chat_abilities *can, const json_t *said, const json_t *tools);
/* chat_template_check.c. Whether the prompt has the text of each message (contents, names and arguments of calls, and
 * with_reasoning the reasoning that the template keeps). MR_E_INVALID: one is missing; the text names it. */
mr_status chat_prompt_check(const chat_abilities *can, const json_t *said, bool with_reasoning, mr_str prompt,
                            mr_err *err);

#endif
