/* The multiples of a number as sets of decimal texts: a term for each class of remainders that the digits so far can
 * leave. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/schema/text_set.h"
#include "engine/base/mem.h"

/* Whether the number is a multiple if n more digits 0 follow. */
static bool divides(uint32_t number, uint32_t remainder, uint32_t n) {
    for (; n > 0; n--)
        remainder = remainder * 10 % number;
    return remainder == 0;
}

/* Whether two remainders are in one class as far as the classes now tell. */
static bool alike(const text_divisor *d, const uint16_t *old, uint32_t x, uint32_t y) {
    for (uint32_t n = 0; n <= d->n_digits; n++)
        if (divides(d->number, x, n) != divides(d->number, y, n))
            return false;
    for (uint32_t digit = 0; old && digit < 10; digit++)
        if (old[(x * 10 + digit) % d->number] != old[(y * 10 + digit) % d->number])
            return false;
    return true;
}

/* Divides the remainders into classes, again and again, until digits lead from each class into one class. A class
 * has the number of its lowest remainder. */
static bool find_classes(text_sets *p, text_divisor *d) {
    uint16_t *now = mr_alloc_array(d->number, sizeof *now), *old = mr_alloc_array(d->number, sizeof *old);
    uint16_t *lowest = mr_alloc_array(TEXT_MAX_REMAINDERS, sizeof *lowest);
    d->class_of = now;
    if (!now || !old || !lowest)
        text_fail(p, TEXT_NO_MEMORY);
    bool changed = true;
    for (int round = 0; changed && p->problem == TEXT_FINE; round++) {
        uint32_t n = 0;
        memcpy(old, now, d->number * sizeof *now);
        changed = false;
        for (uint32_t r = 0; r < d->number && text_spend(p, 1 + n / 16); r++) {
            uint32_t i = 0;
            while (i < n && !(old[lowest[i]] == old[r] && alike(d, round ? old : NULL, lowest[i], r)))
                i++;
            if (i == TEXT_MAX_REMAINDERS) {
                text_fail(p, TEXT_TOO_LARGE);
                break;
            }
            if (i == n)
                lowest[n++] = (uint16_t)r;
            now[r] = lowest[i];
            changed = changed || now[r] != old[r];
        }
    }
    mr_free(old);
    mr_free(lowest);
    return p->problem == TEXT_FINE;
}

static text_set rest_of_number(text_sets *p, uint32_t divisor, uint32_t remainder, uint32_t n_behind) {
    const text_divisor *d = &p->divisors[divisor];
    uint32_t missing = n_behind ? d->n_digits + 1 - n_behind : d->n_digits;
    return text_intern(p, (text_term){.kind = TEXT_IS_MULTIPLE,
                                      .takes_empty = divides(d->number, remainder, missing) ? TEXT_EVERYWHERE : 0,
                                      .a = divisor,
                                      .b = n_behind,
                                      .min = d->class_of[remainder],
                                      .most = TEXT_UNLIMITED});
}

text_set text_multiple(text_sets *p, uint32_t number, uint32_t n_digits) {
    uint32_t i = 0;
    while (i < p->n_divisors && (p->divisors[i].number != number || p->divisors[i].n_digits != n_digits))
        i++;
    if (i == TEXT_MAX_DIVISORS || number == 0 || number > TEXT_MAX_DIVISOR)
        return text_fail(p, TEXT_TOO_LARGE);
    if (i == p->n_divisors) {
        text_divisor *d = &p->divisors[i];
        *d = (text_divisor){.number = number, .n_digits = n_digits};
        if (find_classes(p, d)) {
            p->n_divisors++;
        } else {
            mr_free(d->class_of);
            return TEXT_NONE;
        }
    }
    return p->problem ? TEXT_NONE : rest_of_number(p, i, 0, 0);
}

/* b: 0 before the point, then one more than the digits behind it. Digits behind the last that a multiple has must be
 * 0. */
text_set text_derive_multiple(text_sets *p, text_set a, uint32_t code) {
    const text_term *t = &p->terms[a];
    const text_divisor *d = &p->divisors[t->a];
    if (code == '-')
        return rest_of_number(p, t->a, t->min, t->b);
    if (code == '.')
        return t->b ? TEXT_NONE : rest_of_number(p, t->a, t->min, 1);
    if (code < '0' || code > '9')
        return TEXT_NONE;
    if (t->b == d->n_digits + 1)
        return code == '0' ? rest_of_number(p, t->a, t->min, t->b) : TEXT_NONE;
    return rest_of_number(p, t->a, (t->min * 10 + code - '0') % d->number, t->b ? t->b + 1 : 0);
}
