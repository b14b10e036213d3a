/* engine/text/pretokenize_patterns.c - the regular expressions of each kind of pre-tokenizer, as PCRE2 patterns. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/pretokenize_patterns.h"

#include <stdio.h>

/* For use inside brackets: the Unicode property White_Space, which is white space in the models' own regular
 * expressions. PCRE2's \s also has U+180E. */
#define WS "\\t-\\r\\x{85}\\p{Z}"

/* The last part of most patterns: a run of spaces leaves its last space to the next word. */
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"

#define CONTRACTIONS "'(?:s|t|re|ve|m|ll|d)"
#define PLAIN_SYMBOLS " ?[^" WS "\\p{L}\\p{N}]+"
#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+|" PLAIN_SYMBOLS "|" SPACES
/* Each digit is a word, and the text between digits is cut like GPT2: so a run of spaces in front of a digit keeps its
 * last space. */
#define GPT2_DIGITS CONTRACTIONS "| ?\\p{L}+|\\p{N}|" PLAIN_SYMBOLS "|[" WS "]+(?![^" WS "\\p{N}])|[" WS "]+"

/* The parts of cl100k_base, the pattern of GPT-4, from which the patterns below were made. */
#define CASELESS_CONTRACTIONS "(?i:'(?:s|t|re|ve|m|ll|d))"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define LETTERS PREFIX "\\p{L}+"
#define SYMBOLS PLAIN_SYMBOLS "[\\r\\n]*"
#define LINE_ENDS "[" WS "]*[\\r\\n]+"
#define CL100K(digits) CASELESS_CONTRACTIONS "|" LETTERS "|" digits "|" SYMBOLS "|" LINE_ENDS "|" SPACES
#define LLAMA3 CL100K("\\p{N}{1,3}")
#define QWEN2 CL100K("\\p{N}")
#define QWEN35                                                                                                         \
    CASELESS_CONTRACTIONS "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINE_ENDS       \
                          "|" SPACES
#define SEED_CODER CASELESS_CONTRACTIONS "|" LETTERS "|\\p{N}|" PLAIN_SYMBOLS "|" LINE_ENDS "|" SPACES

/* The parts of o200k_base, the pattern of GPT-4o: a word is cut in front of a capital letter that follows a small one.
 * upper and lower are classes of one character; they share the letters without case, and the marks. */
#define CASED(upper, lower, tail) PREFIX upper "*" lower "+" tail "|" PREFIX upper "+" lower "*" tail
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SYMBOLS_SLASH PLAIN_SYMBOLS "[\\r\\n/]*"
#define GPT4O CASED(UPPER, LOWER, CASELESS_CONTRACTIONS "?") "|\\p{N}{1,3}|" SYMBOLS_SLASH "|" LINE_ENDS "|" SPACES
#define TEKKEN CASED(UPPER, LOWER, "") "|\\p{N}|" SYMBOLS_SLASH "|" LINE_ENDS "|" SPACES

/* The script Han, code by code: what PCRE2 takes for \p{Han} differs from version to version. */
#define HAN                                                                                                            \
    "\\x{2E80}-\\x{2E99}\\x{2E9B}-\\x{2EF3}\\x{2F00}-\\x{2FD5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}"                   \
    "\\x{3038}-\\x{303B}\\x{3400}-\\x{4DBF}\\x{4E00}-\\x{9FFF}\\x{F900}-\\x{FA6D}\\x{FA70}-\\x{FAD9}"                  \
    "\\x{16FE2}\\x{16FE3}\\x{16FF0}\\x{16FF1}\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2B739}\\x{2B740}-\\x{2B81D}"          \
    "\\x{2B820}-\\x{2CEA1}\\x{2CEB0}-\\x{2EBE0}\\x{2F800}-\\x{2FA1D}\\x{30000}-\\x{3134A}\\x{31350}-\\x{323AF}"
/* UPPER and LOWER without Han, as classes of what they do not hold: PCRE2 cannot subtract classes. */
#define UPPER_NOT_HAN "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN "]"
#define LOWER_NOT_HAN "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN "]"
#define KIMI_K2                                                                                                        \
    "[" HAN "]+|" CASED(UPPER_NOT_HAN, LOWER_NOT_HAN, CASELESS_CONTRACTIONS "?") "|\\p{N}{1,3}|" SYMBOLS "|" LINE_ENDS \
                                                                                 "|" SPACES

/* ASCII punctuation in front of ASCII letters, then words and symbols as cl100k_base has them. */
#define DEEPSEEK_V3                                                                                                    \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINE_ENDS      \
    "|" SPACES

/* The cased letters that deepseek-llm's tokenizer lists, code by code. */
#define DEEPSEEK_LETTERS                                                                                               \
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"             \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}"             \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}"                    \
    "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}"                    \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                  \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}"          \
    "\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"         \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}"         \
    "\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}"           \
    "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}"                    \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}"                   \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}"                  \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"                \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"        \
    "\\x{1E900}-\\x{1E943}"

/* ASCII and full-width punctuation, the general quotation marks, and the ideographic space, comma and full stop. */
#define DEEPSEEK_PUNCTUATION "!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}"
#define DEEPSEEK_EAST_ASIAN "\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}"

static const pretok_kind KINDS[] = {
    {.names = {"gpt-2", "gpt2", "default", "phi-2", "mpt", "olmo"}, .steps = {GPT2}},
    {.names = {"llama-bpe", "llama3", "llama-v3"}, .steps = {LLAMA3}, .ignores_merges = true, .adds_bos = true},
    {.names = {"glm4", "glm5"}, .steps = {LLAMA3}, .ignores_merges = true},
    {.names = {"chatglm-bpe", "dbrx", "smaug-bpe"}, .steps = {LLAMA3}},
    {.names = {"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "grok-2", "solar-open", "bailingmoe", "bailingmoe2",
               "llada-moe"},
     .steps = {QWEN2}},
    /* The originals of hunyuan and kimi-k2 look for a whole word before they merge. */
    {.names = {"hunyuan"}, .steps = {QWEN2}, .ignores_merges = true},
    {.names = {"kimi-k2"}, .steps = {KIMI_K2}, .ignores_merges = true, .ids_are_ranks = true},
    {.names = {"qwen35"}, .steps = {QWEN35}},
    {.names = {"seed-coder"}, .steps = {SEED_CODER}},
    {.names = {"gpt-4o", "llama4", "minimax-m2", "kanana2"}, .steps = {GPT4O}},
    {.names = {"tekken"}, .steps = {TEKKEN}, .ignores_merges = true, .adds_bos = true},
    {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
     .steps = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+", DEEPSEEK_V3}},
    {.names = {"deepseek-coder"},
     .steps = {"[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", "[" DEEPSEEK_EAST_ASIAN "]+", "\\p{N}"}},
    {.names = {"deepseek-llm"},
     .steps =
         {
             "[\\r\\n]",
             "[" WS "]?[" DEEPSEEK_LETTERS "]+",
             "[" WS "]?[" DEEPSEEK_PUNCTUATION "]+",
             /* White space at the end of the text. The lookbehind keeps the search from starting again inside a run of
              * spaces, which would take quadratic time. */
             "(?<![" WS "])[" WS "]++\\z",
             "[" DEEPSEEK_EAST_ASIAN "]+",
             "\\p{N}",
         }},
    {.names = {"starcoder", "refact", "command-r", "smollm", "codeshell"}, .steps = {GPT2_DIGITS}},
    /* Punctuation includes all of ASCII's symbols. */
    {.names = {"falcon"}, .steps = {"[\\p{P}$+<=>^`|~]+", GPT2, "[0-9]{1,3}"}},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

const pretok_kind *pretok_kind_find(mr_str name) {
    if (name.len == 0)
        return &KINDS[0];
    for (int i = 0; i < N_KINDS; i++)
        for (int k = 0; k < PRETOK_MAX_NAMES && KINDS[i].names[k]; k++)
            if (mr_str_is(name, KINDS[i].names[k]))
                return &KINDS[i];
    return NULL;
}

void pretok_kind_list(char *out, size_t size) {
    size_t at = 0;
    for (int i = 0; i < N_KINDS; i++) {
        int n = snprintf(out + at, size - at, "%s%s", at ? ", " : "", KINDS[i].names[0]);
        if (n < 0 || (size_t)n >= size - at)
            return;
        at += (size_t)n;
    }
}
