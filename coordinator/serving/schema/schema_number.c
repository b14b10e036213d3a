/* Writes the rules for numbers between bounds, digit by digit. A number is called tight with a bound as long as its
 * digits equal those of the bound. The first digit that differs decides on which side of the bound the number lies. The
 * digits behind it are free. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"

enum {
    REAL_DIGITS = 15, /* of numbers with bounds: decimals of 15 digits keep their order as doubles */
    INTEGER_DIGITS = 16,
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
    schema_put(w, &w->body, low == high ? " [%d]" : " [%d-%d]", low, high);
}

/* Starts an alternative with `before` and n digits. */
static void put_digits(schema_writer *w, const char *before, const char *digits, size_t n) {
    schema_put(w, &w->body, " | \"%s%.*s\"", before, (int)n, digits);
}

static void put_free_digits(schema_writer *w, size_t most) {
    if (most)
        schema_put(w, &w->body, " [0-9]{0,%zu}", most);
}

/* Appends an optional fraction of any digits. */
static void put_free_fraction(schema_writer *w, shape s) {
    if (s.m)
        schema_put(w, &w->body, " (\".\" [0-9]{1,%zu})?", s.m);
}

/* Appends digits of which at least one is not 0. most: the largest number of digits. */
static void put_not_zero(schema_writer *w, size_t most) {
    schema_put(w, &w->body, " \"0\"{0,%zu} [1-9]", (most - 1) / 2);
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
        schema_put(w, &w->body, " \"0\"{0,%zu}", s.m - k);
    }
}

/* Writes alternatives for the numbers whose whole part is that of the lower bound. */
static void put_fraction_above(schema_writer *w, shape s, const char *whole, const bound *low) {
    if (low->fraction[0] == 0 && low->inclusive) {
        schema_put(w, &w->body, " | \"%s\"", whole);
        put_free_fraction(w, s);
    } else if (s.m) {
        char before[MAX_DIGITS * 2];
        snprintf(before, sizeof before, "%s.", whole);
        put_above(w, s, before, low, 0);
    }
}

static void put_fraction_below(schema_writer *w, shape s, const char *whole, const bound *high) {
    char before[MAX_DIGITS * 2];
    snprintf(before, sizeof before, "%s.", whole);
    if (high->fraction[0]) {
        schema_put(w, &w->body, " | \"%s\"", whole);
        put_below(w, s, before, high, 0);
    } else if (high->inclusive) {
        schema_put(w, &w->body, " | \"%s\"", whole);
        if (s.m)
            schema_put(w, &w->body, " (\".\" \"0\"{1,%zu})?", s.m);
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
        schema_put(w, &w->body, i ? " | \"%s.%.*s\"" : " | \"%s\"", whole, (int)i, high->fraction);
    if (p == k) {
        if (low->inclusive && high->inclusive && s.m > k)
            schema_put(w, &w->body, " | \"%s.%s\" \"0\"{1,%zu}", whole, high->fraction, s.m - k);
        return;
    }
    int from = digit(low->fraction, p), to = digit(high->fraction, p);
    if (to - from > 1) {
        schema_put(w, &w->body, " | \"%s.%.*s\"", whole, (int)p, high->fraction);
        put_class(w, from + 1, to - 1);
        put_free_digits(w, s.m - p - 1);
    }
    snprintf(before, sizeof before, "%s.%.*s%d", whole, (int)p, high->fraction, from);
    put_above(w, s, before, low, p + 1);
    snprintf(before, sizeof before, "%s.%.*s%d", whole, (int)p, high->fraction, to);
    if (p + 1 < k_high)
        schema_put(w, &w->body, " | \"%s\"", before);
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
        schema_put(w, &w->body, " [0-9]{%zu}", s.n - i - 1);
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

/* Writes alternatives for all magnitudes from low to high. Each alternative begins with " | ". */
static void put_magnitudes(schema_writer *w, const char *keyword, const bound *low, const bound *high, bool integer) {
    size_t n_low = strlen(low->whole), n_high = strlen(high->whole);
    for (size_t n = n_low; n <= n_high; n++) {
        shape s = {n, integer || n >= REAL_DIGITS ? 0 : REAL_DIGITS - n};
        if ((n == n_low && strlen(low->fraction) > s.m) || (n == n_high && strlen(high->fraction) > s.m)) {
            schema_refuse(w, keyword, "a bound has more than 15 digits");
            return;
        }
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

/* The tighter bound of two keywords, such as minimum and exclusiveMinimum. */
typedef struct limit {
    double value;
    const char *keyword;
    bool given, inclusive;
} limit;

static limit find_limit(const json_t *keywords, const char *inclusive, const char *exclusive, bool lowest) {
    const json_t *a = json_object_get(keywords, inclusive), *b = json_object_get(keywords, exclusive);
    double x = json_number_value(a), y = json_number_value(b);
    bool use_b = b && (!a || (lowest ? y >= x : y <= x));
    return (limit){
        .value = use_b ? y : x, .keyword = use_b ? exclusive : inclusive, .given = a || b, .inclusive = !use_b};
}

static void set_bound(schema_writer *w, const char *keyword, double magnitude, bool inclusive, bound *out) {
    char text[MAX_DIGITS] = "";
    *out = (bound){.inclusive = inclusive};
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*f", precision, magnitude);
        if (strtod(text, NULL) == magnitude)
            break;
    }
    if (strtod(text, NULL) != magnitude) {
        schema_refuse(w, keyword, "a bound has more than 15 digits");
        return;
    }
    size_t n = strcspn(text, ".");
    memcpy(out->whole, text, n);
    snprintf(out->fraction, sizeof out->fraction, "%s", text[n] ? text + n + 1 : "");
    for (size_t k = strlen(out->fraction); k && out->fraction[k - 1] == '0'; k--)
        out->fraction[k - 1] = 0;
}

/* Makes the bounds of integers inclusive. A missing bound, or one of more digits than the rules write, becomes the
 * largest magnitude that the rules write. */
static void complete_limits(schema_writer *w, limit *low, limit *high, bool integer) {
    double most = pow(10, integer ? INTEGER_DIGITS - 1 : REAL_DIGITS) - 1;
    if (integer) {
        low->value = low->inclusive ? ceil(low->value) : floor(low->value) + 1;
        high->value = high->inclusive ? floor(high->value) : ceil(high->value) - 1;
        low->inclusive = high->inclusive = true;
    }
    if (!low->given || low->value < -most)
        *low = (limit){.value = -most, .keyword = "minimum", .given = true, .inclusive = true};
    if (!high->given || high->value > most)
        *high = (limit){.value = most, .keyword = "maximum", .given = true, .inclusive = true};
    if (low->value > most)
        schema_refuse(w, low->keyword, "more than 15 digits");
    if (high->value < -most)
        schema_refuse(w, high->keyword, "more than 15 digits");
}

void schema_write_number(schema_writer *w, const json_t *keywords, bool integer) {
    limit low = find_limit(keywords, "minimum", "exclusiveMinimum", true);
    limit high = find_limit(keywords, "maximum", "exclusiveMaximum", false);
    const json_t *multiple = json_object_get(keywords, "multipleOf");
    if (multiple && !(integer && json_number_value(multiple) == 1))
        schema_refuse(w, "multipleOf", "not supported");
    if (!low.given && !high.given) {
        schema_put(w, &w->body, integer ? "%s-integer" : "%s-number", w->name);
        return;
    }
    complete_limits(w, &low, &high, integer);
    low.value += 0.0; /* -0 becomes 0 */
    high.value += 0.0;
    bound a, b;
    schema_put(w, &w->body, "([]");
    if (w->status == MR_OK && low.value < 0 && low.value <= high.value) {
        /* Negative numbers: magnitudes from the one nearest to zero. The integer -0 is not written. */
        double nearest = high.value < 0 ? -high.value : integer ? 1 : 0;
        set_bound(w, high.keyword, nearest, high.value > 0 || high.inclusive, &a);
        set_bound(w, low.keyword, -low.value, low.inclusive, &b);
        schema_put(w, &w->body, " | \"-\" ([]");
        if (w->status == MR_OK && nearest <= -low.value)
            put_magnitudes(w, low.keyword, &a, &b, integer);
        schema_put(w, &w->body, ")");
    }
    if (w->status == MR_OK && high.value >= 0 && low.value <= high.value) {
        set_bound(w, low.keyword, low.value > 0 ? low.value : 0, low.value < 0 || low.inclusive, &a);
        set_bound(w, high.keyword, high.value, high.inclusive, &b);
        if (w->status == MR_OK)
            put_magnitudes(w, high.keyword, &a, &b, integer);
    }
    schema_put(w, &w->body, ")");
}
