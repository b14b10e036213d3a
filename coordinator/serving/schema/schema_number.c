/* Writes numbers between bounds, digit by digit, as a regular expression. A number is called tight with a bound as
 * long as its digits equal those of the bound. The first digit that differs decides on which side of the bound the
 * number lies. The digits behind it are free. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "coordinator/serving/schema/schema_regex.h"

enum {
    REAL_DIGITS = 15,  /* of numbers with bounds and a fraction: decimals of 15 digits keep their order as doubles */
    WHOLE_DIGITS = 20, /* of a bound, before the point: those of 64 bits */
    MAX_DIGITS = 40,
};

/* The magnitude of a bound. whole: digits before the point, without leading zeros ("0" if there are none). fraction:
 * digits behind the point, without trailing zeros. */
typedef struct bound {
    char whole[MAX_DIGITS], fraction[MAX_DIGITS];
    bool inclusive;
} bound;

/* Numbers with n digits before the point and at most m digits behind the point. */
typedef struct shape {
    size_t n, m;
} shape;

static void put_class(schema_writer *w, int low, int high) {
    schema_put(w, &w->number, low == high ? "%d" : "[%d-%d]", low, high);
}

/* Starts an alternative with `before` and n digits. */
static void put_digits(schema_writer *w, const char *before, const char *digits, size_t n) {
    schema_put(w, &w->number, "|%s%.*s", before, (int)n, digits);
}

static void put_free_digits(schema_writer *w, size_t most) {
    if (most)
        schema_put(w, &w->number, "\\d{0,%zu}", most);
}

/* Appends an optional fraction of any digits. */
static void put_free_fraction(schema_writer *w, shape s) {
    if (s.m)
        schema_put(w, &w->number, "(?:\\.\\d{1,%zu})?", s.m);
}

/* Appends digits of which at least one is not 0. most: the largest number of digits. */
static void put_not_zero(schema_writer *w, size_t most) {
    schema_put(w, &w->number, "0{0,%zu}[1-9]", (most - 1) / 2);
    put_free_digits(w, (most - 1) / 2);
}

static int digit(const char *digits, size_t i) {
    return i < strlen(digits) ? digits[i] - '0' : 0;
}

/* Writes alternatives for the fractions that begin with the first q digits of the lower bound and are not below the
 * bound. before: the number up to and with these digits. */
static void put_above(schema_writer *w, shape s, const char *before, const bound *low, size_t q) {
    size_t k = strlen(low->fraction);
    for (size_t j = q; j < k; j++) {
        if (low->fraction[j] == '9')
            continue;
        put_digits(w, before, low->fraction + q, j - q);
        put_class(w, low->fraction[j] - '0' + 1, 9);
        put_free_digits(w, s.m - j - 1);
    }
    size_t written = q > k ? q : k;
    if (low->inclusive) {
        put_digits(w, before, low->fraction + (q < k ? q : k), k - (q < k ? q : k));
        put_free_digits(w, s.m - written);
    } else if (s.m > written) {
        put_digits(w, before, low->fraction + (q < k ? q : k), k - (q < k ? q : k));
        put_not_zero(w, s.m - written);
    }
}

/* Writes alternatives for the fractions that begin with the first q digits of the upper bound and are not above the
 * bound. */
static void put_below(schema_writer *w, shape s, const char *before, const bound *high, size_t q) {
    size_t k = strlen(high->fraction);
    for (size_t j = q; j < k; j++) {
        if (j > 0)
            put_digits(w, before, high->fraction + q, j - q); /* the fraction ends here */
        if (high->fraction[j] == '0')
            continue;
        put_digits(w, before, high->fraction + q, j - q);
        put_class(w, 0, high->fraction[j] - '0' - 1);
        put_free_digits(w, s.m - j - 1);
    }
    if (high->inclusive && k >= q) {
        put_digits(w, before, high->fraction + q, k - q);
        schema_put(w, &w->number, "0{0,%zu}", s.m - k);
    }
}

/* Writes alternatives for the numbers whose whole part is that of the lower bound. */
static void put_fraction_above(schema_writer *w, shape s, const char *whole, const bound *low) {
    if (low->fraction[0] == 0 && low->inclusive) {
        schema_put(w, &w->number, "|%s", whole);
        put_free_fraction(w, s);
    } else if (s.m) {
        char before[MAX_DIGITS * 2];
        snprintf(before, sizeof before, "%s\\.", whole);
        put_above(w, s, before, low, 0);
    }
}

static void put_fraction_below(schema_writer *w, shape s, const char *whole, const bound *high) {
    char before[MAX_DIGITS * 2];
    snprintf(before, sizeof before, "%s\\.", whole);
    if (high->fraction[0]) {
        schema_put(w, &w->number, "|%s", whole);
        put_below(w, s, before, high, 0);
    } else if (high->inclusive) {
        schema_put(w, &w->number, "|%s", whole);
        if (s.m)
            schema_put(w, &w->number, "(?:\\.0{1,%zu})?", s.m);
    }
}

/* Writes alternatives for the numbers between two bounds with the same whole part. */
static void put_fraction_between(schema_writer *w, shape s, const char *whole, const bound *low, const bound *high) {
    size_t k_low = strlen(low->fraction), k_high = strlen(high->fraction), k = k_low > k_high ? k_low : k_high, p = 0;
    char before[MAX_DIGITS * 3];
    while (p < k && digit(low->fraction, p) == digit(high->fraction, p))
        p++;
    /* Digits that both bounds share: the number may end as soon as it equals the lower bound. */
    for (size_t i = k_low; low->inclusive && (p < k || high->inclusive) && i <= p; i++)
        schema_put(w, &w->number, i ? "|%s\\.%.*s" : "|%s", whole, (int)i, high->fraction);
    if (p == k) {
        if (low->inclusive && high->inclusive && s.m > k)
            schema_put(w, &w->number, "|%s\\.%s0{1,%zu}", whole, high->fraction, s.m - k);
        return;
    }
    int from = digit(low->fraction, p), to = digit(high->fraction, p);
    if (to - from > 1) {
        schema_put(w, &w->number, "|%s\\.%.*s", whole, (int)p, high->fraction);
        put_class(w, from + 1, to - 1);
        put_free_digits(w, s.m - p - 1);
    }
    snprintf(before, sizeof before, "%s\\.%.*s%d", whole, (int)p, high->fraction, from);
    put_above(w, s, before, low, p + 1);
    snprintf(before, sizeof before, "%s\\.%.*s%d", whole, (int)p, high->fraction, to);
    if (p + 1 < k_high)
        schema_put(w, &w->number, "|%s", before);
    put_below(w, s, before, high, p + 1);
}

/* Writes an alternative for whole parts of s.n digits: the first i of `digits`, a digit from low to high, any
 * digits. */
static void put_whole(schema_writer *w, shape s, const char *digits, size_t i, int low, int high) {
    if (low > high)
        return;
    put_digits(w, "", digits, i);
    put_class(w, low, high);
    if (s.n - i > 1)
        schema_put(w, &w->number, "\\d{%zu}", s.n - i - 1);
    put_free_fraction(w, s);
}

/* Writes alternatives for whole parts of s.n digits that begin with the first i digits of the lower bound. */
static void put_whole_above(schema_writer *w, shape s, const bound *low, size_t i) {
    for (; i < s.n; i++)
        put_whole(w, s, low->whole, i, low->whole[i] - '0' + 1, 9);
    put_fraction_above(w, s, low->whole, low);
}

static void put_whole_below(schema_writer *w, shape s, const bound *high, size_t i) {
    for (; i < s.n; i++)
        put_whole(w, s, high->whole, i, i == 0 && s.n > 1, high->whole[i] - '0' - 1);
    put_fraction_below(w, s, high->whole, high);
}

static void put_whole_between(schema_writer *w, shape s, const bound *low, const bound *high) {
    size_t i = 0;
    while (i < s.n && low->whole[i] == high->whole[i])
        i++;
    if (i == s.n) {
        put_fraction_between(w, s, low->whole, low, high);
        return;
    }
    put_whole(w, s, low->whole, i, low->whole[i] - '0' + 1, high->whole[i] - '0' - 1);
    put_whole_above(w, s, low, i + 1);
    put_whole_below(w, s, high, i + 1);
}

/* Whether magnitude a is above b. */
static bool above(const bound *a, const bound *b) {
    size_t n = strlen(a->whole), m = strlen(b->whole);
    int order = n != m ? (n > m) - (n < m) : strcmp(a->whole, b->whole);
    return order ? order > 0 : strcmp(a->fraction, b->fraction) > 0;
}

/* Writes alternatives for all magnitudes from low to high. Each alternative begins with "|". */
static void put_magnitudes(schema_writer *w, const bound *low, const bound *high, bool integer) {
    size_t n_low = strlen(low->whole), n_high = strlen(high->whole);
    for (size_t n = n_low; n <= n_high && !above(low, high); n++) {
        shape s = {n, integer || n >= REAL_DIGITS ? 0 : REAL_DIGITS - n};
        if (n == n_low && n == n_high)
            put_whole_between(w, s, low, high);
        else if (n == n_low)
            put_whole_above(w, s, low, 0);
        else if (n == n_high)
            put_whole_below(w, s, high, 0);
        else
            put_whole(w, s, "", 0, 1, 9);
    }
}

/* Writes a number without sign as decimal digits. Returns false if it has too many. */
static bool read_digits(const json_t *v, bound *out) {
    char text[MAX_DIGITS] = "";
    double magnitude = fabs(json_number_value(v));
    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);
        snprintf(text, sizeof text, "%llu", i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i);
    }
    for (int precision = 0; json_is_real(v) && magnitude < 1e20 && precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*f", precision, magnitude);
        if (strtod(text, NULL) == magnitude)
            break;
    }
    size_t n = strcspn(text, ".");
    memcpy(out->whole, text, n);
    out->whole[n] = 0;
    snprintf(out->fraction, sizeof out->fraction, "%s", text[n] ? text + n + 1 : "");
    for (size_t k = strlen(out->fraction); k && out->fraction[k - 1] == '0'; k--)
        out->fraction[k - 1] = 0;
    return *text && strtod(text, NULL) == magnitude && n <= WHOLE_DIGITS &&
           (!*out->fraction || n + strlen(out->fraction) <= REAL_DIGITS);
}

/* The tighter bound of two keywords, such as minimum and exclusiveMinimum; with its sign. */
typedef struct limit {
    bound digits;
    bool given, negative;
} limit;

static limit find_limit(schema_writer *w, const json_t *keywords, bool lowest) {
    const char *inclusive = lowest ? "minimum" : "maximum",
               *exclusive = lowest ? "exclusiveMinimum" : "exclusiveMaximum";
    const json_t *a = json_object_get(keywords, inclusive), *b = json_object_get(keywords, exclusive);
    double x = json_number_value(a), y = json_number_value(b);
    bool use_b = b && (!a || (lowest ? y >= x : y <= x));
    limit l = {.given = a || b, .negative = (use_b ? y : x) < 0};
    l.digits.inclusive = !use_b;
    if (l.given && !read_digits(use_b ? b : a, &l.digits)) {
        /* A bound beyond all numbers that are written is none. */
        if (fabs(use_b ? y : x) < 1e20 || lowest != l.negative)
            schema_widen(w, use_b ? exclusive : inclusive, "it has too many digits");
        l.given = false;
    }
    if (!l.given) {
        l = (limit){.negative = lowest, .digits = {.whole = "8999999999999999999", .inclusive = true}};
    }
    return l;
}

/* The bound of a magnitude. Integers have no fraction: above 3.5 is above 3, below 3.5 is at most 3. */
static bound magnitude_of(const limit *l, bool is_low, bool integer) {
    bound b = l->digits;
    if (integer && b.fraction[0]) {
        b.fraction[0] = 0;
        b.inclusive = !is_low;
    }
    return b;
}

/* Writes the numbers between the bounds to w->number. Each alternative begins with "|". */
static void put_numbers(schema_writer *w, const limit *low, const limit *high, bool integer) {
    bound zero = {.whole = "0", .inclusive = true};
    mr_text_buf_clear(&w->number);
    if (low->negative) {
        bound nearest = high->negative ? magnitude_of(high, true, integer) : zero;
        bound farthest = magnitude_of(low, false, integer);
        if (!high->negative && integer)
            nearest.inclusive = false; /* the integer -0 is not written */
        if (!high->negative && !integer && strcmp(high->digits.whole, "0") == 0 && !high->digits.fraction[0])
            nearest.inclusive = high->digits.inclusive;
        schema_put(w, &w->number, "|-(?:");
        size_t begin = w->number.len;
        put_magnitudes(w, &nearest, &farthest, integer);
        if (w->number.len == begin) {
            mr_text_buf_clear(&w->number);
        } else if (w->status == MR_OK) {
            w->number.len--; /* the first alternative of the group needs no | */
            memmove(w->number.data + begin, w->number.data + begin + 1, w->number.len - begin);
            schema_put(w, &w->number, ")");
        }
    }
    if (!high->negative) {
        bound nearest = low->negative ? zero : magnitude_of(low, true, integer);
        bound farthest = magnitude_of(high, false, integer);
        put_magnitudes(w, &nearest, &farthest, integer);
    }
}

static text_set read_number(schema_writer *w, const char *expression, size_t n) {
    text_set set = TEXT_NONE;
    const char *why;
    schema_read_regex(&w->texts, (mr_str){expression, n}, true, &set, &why);
    return set;
}

/* The multiples that the keyword allows; TEXT_ALL if it is not honoured. */
static text_set read_multiple(schema_writer *w, const json_t *value) {
    bound b = {0};
    char digits[MAX_DIGITS * 2];
    bool ok = read_digits(value, &b) && json_number_value(value) > 0;
    snprintf(digits, sizeof digits, "%s%s", b.whole, b.fraction);
    double number = strtod(digits, NULL);
    text_set set = ok && number <= TEXT_MAX_DIVISOR
                       ? text_multiple(&w->texts, (uint32_t)number, (uint32_t)strlen(b.fraction))
                       : text_fail(&w->texts, TEXT_TOO_LARGE);
    if (w->texts.problem == TEXT_FINE)
        return set;
    if (schema_can_go_on(w))
        schema_widen(w, "multipleOf", "its automaton is too large");
    return TEXT_ALL;
}

static text_set read_multiples(schema_writer *w, const json_t *keywords) {
    const json_t *value = json_object_get(keywords, "multipleOf");
    text_set set = TEXT_ALL;
    size_t i;
    json_t *one;
    if (json_is_number(value))
        return read_multiple(w, value);
    json_array_foreach(value, i, one) set = text_both(&w->texts, set, read_multiple(w, one));
    return set;
}

void schema_write_number(schema_writer *w, const json_t *keywords, bool integer) {
    static const char *const bounds[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
    bool bounded = false;
    if (!schema_can_go_on(w))
        return;
    text_set multiples = read_multiples(w, keywords), numbers;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        bounded = bounded || json_object_get(keywords, bounds[i]);
    if (!bounded && multiples == TEXT_ALL) {
        schema_put(w, &w->body, integer ? "%s-integer " : "%s-number ", w->name);
        return;
    }
    limit low = find_limit(w, keywords, true), high = find_limit(w, keywords, false);
    put_numbers(w, &low, &high, integer);
    numbers = w->status == MR_OK && w->number.len ? read_number(w, w->number.data + 1, w->number.len - 1) : TEXT_NONE;
    if (schema_write_set(w, &w->body, text_both(&w->texts, numbers, multiples), TEXT_BARE, "") || !schema_can_go_on(w))
        return;
    if (schema_widen(w, "multipleOf", "with the bounds beside it, its automaton is too large") &&
        !schema_write_set(w, &w->body, numbers, TEXT_BARE, ""))
        schema_fail(w, MR_E_TOO_LONG, "schema: the bounds of a number are too large");
}

bool schema_number_fits(schema_writer *w, const json_t *keywords, const json_t *value) {
    static const struct {
        const char *name;
        bool low, inclusive;
    } bounds[] = {{"minimum", true, true},
                  {"maximum", false, true},
                  {"exclusiveMinimum", true, false},
                  {"exclusiveMaximum", false, false}};
    double x = json_number_value(value);
    bound b = {0};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const json_t *v = json_object_get(keywords, bounds[i].name);
        double y = json_number_value(v);
        if (v && (bounds[i].low ? x < y : x > y))
            return false;
        if (v && !bounds[i].inclusive && x == y)
            return false;
    }
    if (!json_object_get(keywords, "multipleOf") || !read_digits(value, &b))
        return true;
    char text[MAX_DIGITS * 2 + 2];
    snprintf(text, sizeof text, "%s%s%s", b.whole, *b.fraction ? "." : "", b.fraction);
    return schema_can_go_on(w) && text_has(&w->texts, read_multiples(w, keywords), mr_str_from(text));
}
