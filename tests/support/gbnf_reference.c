// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gbnf_reference.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 4096, MAX_NAME = 64, PLACES = GBNF_REFERENCE_MAX_TEXT + 1 };

typedef enum part_kind { PART_CHARS, PART_NAME, PART_BOTH, PART_EITHER, PART_TIMES, PART_NOTHING } part_kind;

typedef struct part {
    part_kind kind;
    int a, b;     /* parts */
    int min, max; /* PART_TIMES; max -1: no end */
    uint32_t from[64], to[64];
    int n_ranges;
    bool negated;
    char name[MAX_NAME];
} part;

/* The places where a part that starts at one place can end. */
typedef struct ends {
    int part, at;
    bool at_place[PLACES];
} ends;

struct gbnf_reference {
    const char *p; /* the parser's position in the grammar */
    part parts[MAX_PARTS];
    int n_parts;
    char rule_names[256][MAX_NAME];
    int rule_parts[256];
    int n_rules;
    const uint8_t *text;
    int n;
    bool wants_more;
    ends **known; /* [n_parts * PLACES] */
};

static void broken(const char *what, const char *at) {
    fprintf(stderr, "reference grammar: %s at: %.40s\n", what, at);
    abort();
}

static int new_part(gbnf_reference *g, part_kind kind, int a, int b) {
    if (g->n_parts == MAX_PARTS)
        broken("too large", "");
    g->parts[g->n_parts] = (part){.kind = kind, .a = a, .b = b};
    return g->n_parts++;
}

static void blanks(gbnf_reference *g, bool lines) {
    for (;; g->p++) {
        if (*g->p == '#')
            while (g->p[1] && g->p[1] != '\n')
                g->p++;
        else if (*g->p != ' ' && *g->p != '\t' && !(lines && *g->p == '\n'))
            return;
    }
}

static uint32_t one_char(gbnf_reference *g) {
    const uint8_t *s = (const uint8_t *)g->p;
    if (s[0] == '\\') {
        int digits = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
        char number[9] = {0};
        memcpy(number, g->p + 2, (size_t)digits);
        g->p += 2 + digits;
        return digits        ? (uint32_t)strtoul(number, NULL, 16)
               : s[1] == 'n' ? '\n'
               : s[1] == 'r' ? '\r'
               : s[1] == 't' ? '\t'
                             : s[1];
    }
    int len = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    uint32_t code = len == 1 ? s[0] : s[0] & (0x7Fu >> len);
    for (int i = 1; i < len; i++)
        code = code * 64 + (s[i] & 63u);
    g->p += len;
    return code;
}

static int read_either(gbnf_reference *g, bool nested);

static int read_one(gbnf_reference *g) {
    int id;
    if (*g->p == '"') {
        id = new_part(g, PART_NOTHING, 0, 0);
        for (g->p++; *g->p != '"';) {
            int c = new_part(g, PART_CHARS, 0, 0);
            g->parts[c].from[0] = g->parts[c].to[0] = one_char(g);
            g->parts[c].n_ranges = 1;
            id = new_part(g, PART_BOTH, id, c);
        }
        g->p++;
    } else if (*g->p == '[' || *g->p == '.') {
        id = new_part(g, PART_CHARS, 0, 0);
        part *c = &g->parts[id];
        c->negated = *g->p++ == '.';
        if (!c->negated) {
            c->negated = *g->p == '^';
            g->p += c->negated;
            for (; *g->p != ']'; c->n_ranges++) {
                c->from[c->n_ranges] = c->to[c->n_ranges] = one_char(g);
                if (*g->p == '-' && g->p[1] != ']') {
                    g->p++;
                    c->to[c->n_ranges] = one_char(g);
                }
            }
            g->p++;
        }
    } else if (*g->p == '(') {
        g->p++;
        blanks(g, true);
        id = read_either(g, true);
        if (*g->p++ != ')')
            broken("no )", g->p);
    } else {
        id = new_part(g, PART_NAME, 0, 0);
        size_t n = strspn(g->p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");
        if (n == 0 || n >= MAX_NAME)
            broken("no name", g->p);
        memcpy(g->parts[id].name, g->p, n);
        g->p += n;
    }
    return id;
}

static int read_times(gbnf_reference *g, int id) {
    for (; *g->p && strchr("?*+{", *g->p);) {
        int min = *g->p == '+', max = *g->p == '?' ? 1 : -1;
        if (*g->p++ == '{') {
            char *end;
            min = (int)strtol(g->p, &end, 10);
            max = min;
            g->p = end;
            if (*g->p == ',') {
                max = *++g->p == '}' ? -1 : (int)strtol(g->p, &end, 10);
                g->p = max == -1 ? g->p : end;
            }
            g->p++;
        }
        id = new_part(g, PART_TIMES, id, 0);
        g->parts[id].min = min;
        g->parts[id].max = max;
        blanks(g, false);
    }
    return id;
}

static int read_either(gbnf_reference *g, bool nested) {
    int either = -1;
    for (;;) {
        int both = new_part(g, PART_NOTHING, 0, 0);
        while (*g->p && *g->p != '|' && *g->p != ')' && *g->p != '\n') {
            int one = read_one(g);
            blanks(g, false);
            one = read_times(g, one);
            blanks(g, nested);
            both = new_part(g, PART_BOTH, both, one);
        }
        either = either < 0 ? both : new_part(g, PART_EITHER, either, both);
        if (*g->p != '|')
            return either;
        g->p++;
        blanks(g, true);
    }
}

gbnf_reference *gbnf_reference_create(const char *gbnf) {
    gbnf_reference *g = calloc(1, sizeof *g);
    if (!g)
        abort();
    g->p = gbnf;
    for (blanks(g, true); *g->p; blanks(g, true)) {
        size_t n = strcspn(g->p, " :");
        memcpy(g->rule_names[g->n_rules], g->p, n);
        g->p += n;
        blanks(g, false);
        if (strncmp(g->p, "::=", 3) != 0)
            broken("no ::=", g->p);
        g->p += 3;
        blanks(g, true);
        g->rule_parts[g->n_rules++] = read_either(g, false);
    }
    for (int i = 0; i < g->n_parts; i++) {
        part *c = &g->parts[i];
        c->a = c->kind == PART_NAME ? -1 : c->a;
        for (int k = 0; c->kind == PART_NAME && k < g->n_rules; k++)
            if (strcmp(g->rule_names[k], c->name) == 0)
                c->a = g->rule_parts[k];
        if (c->kind == PART_NAME && c->a < 0)
            broken("no such rule", c->name);
    }
    g->known = calloc((size_t)g->n_parts * PLACES, sizeof *g->known);
    return g;
}

void gbnf_reference_destroy(gbnf_reference *g) {
    free(g->known);
    free(g);
}

static bool in_class(const part *c, uint32_t code) {
    bool in = false;
    for (int i = 0; i < c->n_ranges; i++)
        in = in || (code >= c->from[i] && code <= c->to[i]);
    return in != c->negated && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

/* The length of the character at `at` if the class contains the character, else 0. Notes that the text can go on if the
 * text ends before or inside the character. */
static int match_char(gbnf_reference *g, const part *c, int at) {
    int left = g->n - at;
    if (left == 0) {
        g->wants_more = true;
        return 0;
    }
    uint8_t s[4] = {0}, lead = g->text[at];
    int len = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    int have = len < left ? len : left;
    memcpy(s, g->text + at, (size_t)have);
    for (int i = 1; i < have; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    /* The range of characters that begin with the bytes of the text. */
    uint32_t low = len == 1 ? s[0] : s[0] & (0x7Fu >> len), high = low;
    for (int i = 1; i < len; i++) {
        low = low * 64 + (i < have ? s[i] & 63u : 0);
        high = high * 64 + (i < have ? s[i] & 63u : 63);
    }
    uint32_t least = len == 2 ? 0x80 : len == 3 ? 0x800 : len == 4 ? 0x10000 : 0;
    for (uint32_t code = low < least ? least : low; len && code <= high; code++) {
        if (!in_class(c, code))
            continue;
        if (have == len)
            return len;
        g->wants_more = true;
        return 0;
    }
    return 0;
}

static const ends *ends_of(gbnf_reference *g, int id, int at);

/* The places where min to max repetitions of a part can end, starting at `at`. */
static void ends_of_times(gbnf_reference *g, const part *c, int at, ends *out) {
    bool now[PLACES] = {false}, seen[PLACES] = {false};
    now[at] = true;
    for (int times = 0; c->max < 0 || times <= c->max; times++) {
        bool next[PLACES] = {false}, any = false;
        for (int i = at; i <= g->n; i++) {
            if (!now[i])
                continue;
            if (times >= c->min)
                out->at_place[i] = true;
            if (times >= c->min && c->max < 0) {
                if (seen[i])
                    continue;
                seen[i] = true;
            }
            if (c->max >= 0 && times == c->max)
                continue;
            const ends *e = ends_of(g, c->a, i);
            for (int k = i; k <= g->n; k++)
                any |= next[k] |= e->at_place[k];
        }
        memcpy(now, next, sizeof now);
        if (!any)
            return;
    }
}

static const ends *ends_of(gbnf_reference *g, int id, int at) {
    ends **slot = &g->known[id * PLACES + at];
    if (*slot)
        return *slot;
    const part *c = &g->parts[id];
    ends *out = calloc(1, sizeof *out);
    const ends *e;
    int len;
    if (!out)
        abort();
    switch (c->kind) {
    case PART_NOTHING:
        out->at_place[at] = true;
        break;
    case PART_CHARS:
        len = match_char(g, c, at);
        if (len)
            out->at_place[at + len] = true;
        break;
    case PART_NAME:
        *out = *ends_of(g, c->a, at);
        break;
    case PART_BOTH:
        e = ends_of(g, c->a, at);
        for (int i = at; i <= g->n; i++) {
            if (!e->at_place[i])
                continue;
            const ends *second = ends_of(g, c->b, i);
            for (int k = i; k <= g->n; k++)
                out->at_place[k] |= second->at_place[k];
        }
        break;
    case PART_EITHER:
        *out = *ends_of(g, c->a, at);
        e = ends_of(g, c->b, at);
        for (int k = at; k <= g->n; k++)
            out->at_place[k] |= e->at_place[k];
        break;
    case PART_TIMES:
        ends_of_times(g, c, at, out);
        break;
    }
    return *slot = out;
}

void gbnf_reference_read(gbnf_reference *g, const char *text, size_t n, bool *out_matches, bool *out_begins) {
    int root = -1;
    for (int i = 0; i < g->n_rules; i++)
        if (strcmp(g->rule_names[i], "root") == 0)
            root = g->rule_parts[i];
    if (n > GBNF_REFERENCE_MAX_TEXT || root < 0)
        broken("text too long or no root", text);
    g->text = (const uint8_t *)text;
    g->n = (int)n;
    g->wants_more = false;
    *out_matches = ends_of(g, root, 0)->at_place[n];
    *out_begins = *out_matches || g->wants_more;
    for (int i = 0; i < g->n_parts; i++) {
        for (size_t at = 0; at <= n; at++) {
            free(g->known[i * PLACES + (int)at]);
            g->known[i * PLACES + (int)at] = NULL;
        }
    }
}
