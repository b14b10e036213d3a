// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat_input.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "coordinator/console/interrupt.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"

enum { HISTORY_TEXTS = 1000 };

struct chat_input {
    EditLine *editor; /* NULL: no terminal */
    History *history;
    char *history_path;
    mr_text_buf pending; /* bytes of plain input that were read */
    size_t n_taken;      /* bytes of pending that were returned as a line */
    size_t n_lines;      /* of plain input, that were read */
    bool goes_on;        /* the prompt shows that a text is not complete */
};

static chat_input *input_of(EditLine *editor) {
    void *in = NULL;
    el_get(editor, EL_CLIENTDATA, &in);
    return in;
}

static char *prompt_text(EditLine *editor) {
    static char first[] = "> ", more[] = ". ";
    return input_of(editor)->goes_on ? more : first;
}

/* Waits for input; false: a signal came instead. Signals are blocked except during ppoll, so a signal between the check
 * and the wait is not missed. */
static bool wait_for_input(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    sigset_t none;
    sigemptyset(&none);
    while (!mr_interrupt_seen()) {
        int n = ppoll(&input, 1, NULL, &none);
        if (n > 0 || (n < 0 && errno != EINTR))
            return !mr_interrupt_seen();
    }
    return false;
}

/* Reads a character. Fits el_rfunc_t. */
static int read_char(EditLine *editor, wchar_t *out) {
    mbstate_t state = {0};
    (void)editor;
    for (;;) {
        char byte;
        if (!wait_for_input())
            return -1;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2)
            continue;
        if (used == (size_t)-1)
            *out = (unsigned char)byte;
        return 1;
    }
}

static mr_status open_editor(chat_input *in, mr_err *err) {
    HistEvent event;
    /* libedit needs the character set of the terminal to edit a character of several bytes as one character. */
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    in->editor = el_init("millrace", stdin, stdout, stderr);
    in->history = history_init();
    if (!in->editor || !in->history)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to edit lines");
    history(in->history, &event, H_SETSIZE, HISTORY_TEXTS);
    history(in->history, &event, H_SETUNIQUE, 1);
    if (in->history_path)
        history(in->history, &event, H_LOAD, in->history_path);
    el_set(in->editor, EL_CLIENTDATA, in);
    el_set(in->editor, EL_PROMPT, prompt_text);
    el_set(in->editor, EL_EDITOR, "emacs");
    el_set(in->editor, EL_SIGNAL, 0); /* libedit must not catch signals */
    el_set(in->editor, EL_GETCFN, read_char);
    el_set(in->editor, EL_HIST, history, in->history);
    el_source(in->editor, NULL); /* the user's .editrc */
    return MR_OK;
}

mr_status chat_input_open(const char *history_path, chat_input **out, mr_err *err) {
    chat_input *in = mr_alloc(sizeof *in);
    if (!in)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to read lines");
    mr_status status = MR_OK;
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        in->history_path = history_path ? mr_strdup(history_path) : NULL;
        status = open_editor(in, err);
    }
    if (status == MR_OK)
        *out = in;
    else
        chat_input_close(in);
    return status;
}

void chat_input_close(chat_input *in) {
    HistEvent event;
    if (!in)
        return;
    if (in->history && in->history_path) {
        mode_t before = umask(S_IRWXG | S_IRWXO); /* the file is readable by this user only */
        history(in->history, &event, H_SAVE, in->history_path);
        umask(before);
    }
    if (in->history)
        history_end(in->history);
    if (in->editor)
        el_end(in->editor);
    mr_free(in->history_path);
    mr_text_buf_deinit(&in->pending);
    mr_free(in);
}

bool chat_input_at_terminal(const chat_input *in) {
    return in->editor != NULL;
}

/* Returns a line of plain input, as el_gets does. A line that is too long comes in pieces. */
static const char *plain_line(chat_input *in, int *out_n) {
    mr_text_buf *b = &in->pending;
    if (in->n_taken > 0) {
        b->len -= in->n_taken;
        memmove(b->data, b->data + in->n_taken, b->len);
        in->n_taken = 0;
    }
    const char *end = b->len ? memchr(b->data, '\n', b->len) : NULL;
    while (!end && b->len <= CHAT_INPUT_MAX_BYTES) {
        char more[4096];
        ssize_t n = wait_for_input() ? read(STDIN_FILENO, more, sizeof more) : -1;
        if (n < 0 || !mr_text_buf_append(b, more, (size_t)n))
            return NULL;
        if (n == 0)
            break;
        end = memchr(b->data + b->len - n, '\n', (size_t)n);
    }
    in->n_taken = end ? (size_t)(end - b->data) + 1 : b->len;
    *out_n = (int)in->n_taken;
    return b->data;
}

/* Returns a line without its newline; data is NULL at the end of the input, or after a signal. The line is valid until
 * the next call. */
static mr_str read_line(chat_input *in) {
    int n = 0;
    sigset_t held, before;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigprocmask(SIG_BLOCK, &held, &before);
    const char *line = in->editor ? el_gets(in->editor, &n) : plain_line(in, &n);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (!line || n <= 0 || mr_interrupt_seen())
        return (mr_str){NULL, 0};
    return (mr_str){line, (size_t)n - (line[n - 1] == '\n')};
}

/* Plain input is text that somebody wrote elsewhere. Its first line shows in which form. */
static mr_status take_plain_line(chat_input *in, mr_str *line, mr_err *err) {
    if (line->len && line->data[line->len - 1] == '\r')
        line->len--;
    if (++in->n_lines == 1)
        return mr_text_check(*line, "standard input", line, err);
    if (line->len && memchr(line->data, 0, line->len))
        return mr_err_set(err, MR_E_FORMAT, "standard input, line %zu: there is a NUL byte, so it is no text",
                          in->n_lines);
    return MR_OK;
}

static mr_status add_line(mr_text_buf *text, bool first, mr_str line, mr_err *err) {
    if (text->len + line.len > CHAT_INPUT_MAX_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "the text has more than %d bytes", CHAT_INPUT_MAX_BYTES);
    if ((!first && !mr_text_buf_append(text, "\n", 1)) || !mr_text_buf_append(text, line.data, line.len))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text of %zu bytes", text->len + line.len);
    return MR_OK;
}

/* Reads the lines of one text. *out_what: as in chat_input_read. */
static mr_status read_text(chat_input *in, chat_typed *out_what, mr_text_buf *text, mr_err *err) {
    bool quoted = false, first = true;
    for (;;) {
        mr_str line = read_line(in);
        if (!line.data) {
            *out_what = mr_interrupt_seen() ? CHAT_TYPED_INTERRUPT : text->len ? CHAT_TYPED_TEXT : CHAT_TYPED_END;
            return MR_OK;
        }
        *out_what = CHAT_TYPED_TEXT;
        mr_status status = in->editor ? MR_OK : take_plain_line(in, &line, err);
        if (status != MR_OK)
            return status;
        bool is_quotes = mr_str_is(line, "\"\"\"");
        if (is_quotes && quoted)
            return MR_OK;
        if (is_quotes && first) {
            quoted = in->goes_on = true;
            continue;
        }
        bool more = !quoted && line.len > 0 && line.data[line.len - 1] == '\\';
        status = add_line(text, first, (mr_str){line.data, line.len - more}, err);
        if (status != MR_OK || (!more && !quoted))
            return status;
        in->goes_on = true;
        first = false;
    }
}

mr_status chat_input_read(chat_input *in, chat_typed *out_what, mr_text_buf *out_text, mr_err *err) {
    mr_text_buf_clear(out_text);
    in->goes_on = false;
    mr_status status = read_text(in, out_what, out_text, err);
    if (in->editor && status == MR_OK && *out_what != CHAT_TYPED_TEXT)
        putchar('\n');
    if (in->editor && status == MR_OK && *out_what == CHAT_TYPED_TEXT && out_text->len) {
        HistEvent event;
        history(in->history, &event, H_ENTER, out_text->data);
    }
    fflush(stdout);
    return status;
}
