#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the grammars of JSON schemas against the package jsonschema: each text that a grammar accepts is valid, and
texts of every kind are accepted or refused as expected. Errors name the keywords that are not supported."""
import json
import os
import random
import re
import subprocess
import sys
import time

from test_packages import enter

enter("jsonschema")
import jsonschema  # noqa: E402
from grammar_formats import FORMATS  # noqa: E402

WALK = os.environ["MILLRACE_GRAMMAR_WALK"]
VERBOSE = "-v" in sys.argv
SHARE = int(os.environ.get("MILLRACE_TEST_SHARE", "1"))
PATIENCE = 12 if os.environ.get("MILLRACE_TEST_LONG") else SHARE  # a long run is also one of sanitizers
PERSON = {
    "type": "object",
    "title": "a person",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "nick": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b\"c", "\u00e9\n"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHAPE = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0}},
         "required": ["kind", "r"], "additionalProperties": False},
        {"type": "object", "properties": {"kind": {"enum": ["square", "cube"]}, "a": {"type": "number"}},
         "required": ["kind", "a"], "additionalProperties": False},
        {"type": "string"},
    ]
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                       "required": ["v"], "additionalProperties": False}},
}
STRANGE = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "ab": {"type": "integer"}, "abc\u00e9": {"type": "integer"}, "q\"": {"type": "integer"}, "": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
}

# A schema, texts that must be accepted, texts that must be refused. All texts are also checked with jsonschema, except
# valid texts that the grammar refuses on purpose (other orders of properties, other white space, rare forms).
CASES = [
    ({}, ["{}", "[1, 2]", "\"x\"", "null", "-1.5e+3", "{\"a\": {\"b\":[true,false]}}"], ["", "{", "[1,]", "01", "nul", "\"\u0007\""]),
    (True, ["0"], []),
    ({"type": "object"}, ["{}", "{\"a\": 1}"], ["[]", "1"]),
    (PERSON, ["{\"name\": \"x\", \"age\": 120}", "{\"name\":\"x\",\"age\":0,\"nick\":null,\"tags\":[\"a\",\"b\\\"c\"]}",
              "{\n  \"name\": \"12345678901\\u00e9\",\n  \"age\": 7,\n  \"tags\": []\n}"],
     ["{}", "{\"name\": \"\", \"age\": 1}", "{\"name\": \"x\", \"age\": 121}", "{\"name\": \"x\", \"age\": -1}", "{\"name\": \"x\", \"age\": 1.5}",
      "{\"name\": \"1234567890123\", \"age\": 1}", "{\"name\": \"x\", \"age\": 1, \"more\": 1}",
      "{\"name\": \"x\", \"age\": 1, \"tags\": [\"a\",\"a\",\"a\",\"a\"]}", "{\"name\": \"x\", \"age\": 1, \"tags\": [\"c\"]}"]),
    (SHAPE, ["{\"kind\": \"circle\", \"r\": 0.001}", "{\"kind\": \"cube\", \"a\": -1}", "\"circle\""],
     ["{\"kind\": \"circle\", \"r\": 0}", "{\"kind\": \"cube\", \"r\": 1}", "1"]),
    (TREE, ["{\"v\": 1, \"kids\": [{\"v\": 2}, {\"v\": 3, \"kids\": []}]}"], ["{\"kids\": []}", "{\"v\": 1, \"kids\": [1]}"]),
    (STRANGE, ["{\"a\": 1, \"b\": \"x\"}", "{\"abc\": \"x\", \"abcd\": \"y\"}", "{\"q\\\"\": 1, \"\": 2}", "{\"\u00e9\": \"\"}", "{\"abc\u00e9\u00e9\": \"\"}"],
     ["{\"a\": \"x\"}", "{\"b\": 1}", "{\"b\": \"x\", \"a\": \"x\"}", "{\"b\": \"x\", \"abc\u00e9\": \"x\"}", "{\"x\": \"\", \"\": \"\"}",
      "{\"x\": \"\", \"\\u0061\": \"\"}"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1}, ["[1]", "[1, \"x\"]"],
     ["[]", "[\"x\"]", "[1, \"x\", 2]"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 4},
     ["[1, null]", "[1, null, null, null]"], ["[1]", "[1, 1]", "[1, null, null, null, null]"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}, ["[true, false]", "[true,true,true]"],
     ["[]", "[true]", "[true,true,true,true]"]),
    ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
    ({"enum": [1, "a", None, {"x": [1.5]}, 0.1]}, ["1", "\"a\"", "null", "{\"x\":[1.5]}", "0.1"], ["2", "\"b\"", "[]"]),
    ({"type": "string", "enum": [1, "a"]}, ["\"a\""], ["1"]),
    ({"oneOf": [{"const": 1}, {"enum": [2, 3.5]}, {"const": "1"}]}, ["1", "2", "3.5", "\"1\""], ["3", "4"]),
    ({"const": "\u20ac\\"}, ["\"\u20ac\\\\\""], ["\"x\""]),
    ({"type": "string", "pattern": "^[a-c]+\\d{2,3}$"}, ["\"ab12\"", "\"c123\""], ["\"ab1\"", "\"12\"", "\"a1234\"", "\"xa12\""]),
    ({"type": "string", "pattern": "b|^c"}, ["\"abc\"", "\"cx\"", "\"b\""], ["\"ac\"", "\"\""]),
    ({"type": "string", "pattern": "^(?:x|y(z)?)*[^a-y]$"}, ["\"xyzz\"", "\"\\\"\"", "\"\u00e9\"", "\"\\u0001\"", "\"yx\\n\""], ["\"xa\"", "\"\""]),
    ({"type": "string", "pattern": "^\\S.\\s\\w\\W$"}, ["\"ab a-\""], ["\" b a-\"", "\"ab aa\""]),
    ({"type": "string", "pattern": "^.{2}$", "minLength": 1, "maxLength": 2}, ["\"\u00e9\u20ac\""], ["\"a\"", "\"abc\""]),
    ({"type": "string", "minLength": 2}, ["\"ab\"", "\"\\\"\\n\\ud83d\\ude00\""], ["\"a\"", "\"\\ud83d\\ude00\""]),
    ({"type": "string", "format": "date"}, ["\"2024-02-29\"", "\"1999-12-31\""], ["\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"1900-02-29\""]),
    ({"type": "string", "format": "date-time"}, ["\"2024-02-29T23:59:59Z\"", "\"2024-02-28T00:00:00.125+02:00\""], ["\"2024-02-29\""]),
    ({"type": "string", "format": "uuid"}, ["\"123e4567-e89b-12d3-a456-426614174000\""], ["\"123e4567\""]),
    ({"type": "string", "format": "ipv4"}, ["\"255.0.10.199\""], ["\"256.0.0.1\"", "\"1.2.3\""]),
    ({"type": "string", "format": "email"}, ["\"ada@example.org\""], ["\"ada\""]),
    ({"type": "integer", "minimum": -7, "maximum": 1203}, ["-7", "0", "1203", "999"], ["-8", "1204", "9999", "1.5"]),
    ({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12}, ["10", "11"], ["9", "12", "1"]),
    ({"type": "integer", "minimum": 5}, ["5", "10", "123456789"], ["4", "-5"]),
    ({"type": "number", "minimum": 0.5, "maximum": 0.75}, ["0.5", "0.75", "0.6", "0.500", "0.7499", "0.750"], ["0", "1", "0.49", "0.751", "0.4999", "0.76"]),
    ({"type": "number", "minimum": -1.25, "exclusiveMaximum": 10}, ["-1.25", "-1.2", "-0.5", "0", "9.99", "9"], ["-1.26", "10", "10.0", "-2"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.1", "0.01", "1", "1.0", "1.00"], ["0", "0.0", "1.01", "-0.5"]),
    ({"type": "number", "minimum": 99.5, "maximum": 1000}, ["99.5", "100.25", "1000", "999.999"], ["99.4", "99", "1000.1", "1001"]),
    ({"minimum": 3, "maxLength": 1}, ["3", "\"a\"", "null", "[]", "{\"a\": 0}"], ["2", "\"ab\""]),
    ({"anyOf": [{"minimum": 3}, {"type": "string"}], "type": ["integer", "string"]}, ["3", "\"a\""], ["2", "null", "3.5"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 5}, "b": {"type": "null"}}, "additionalProperties": False}]},
     ["{\"a\": 5}", "{\"a\": 7, \"b\": null}"], ["{\"a\": 4}", "{\"b\": null}", "{\"a\": 5, \"c\": 1}"]),
    ({"$defs": {"s": {"type": "string"}, "a/b": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/s", "maxLength": 2}, {"$ref": "#/$defs/a~1b"}]},
     ["\"ab\"", "null"], ["\"abc\"", "1"]),
    ({"type": "object", "properties": {"x": True, "y": False, "z": {}}, "required": ["w"]}, ["{\"x\": 1, \"w\": 2}", "{\"w\": []}"],
     ["{\"y\": 1, \"w\": 2}", "{\"x\": 1}", "{\"x\": 1, \"w\": 2, \"o\": 3}"]),
    ({"type": "object", "properties": {"x": True, "y": False}, "required": ["w"], "additionalProperties": True},
     ["{\"x\": 1, \"w\": 2, \"o\": 3}", "{\"w\": []}"], ["{\"y\": 1, \"w\": 2}", "{\"x\": 1}"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", "{\"a\": 1, \"b\": 2}"], ["{\"a\": \"x\"}"]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2, "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
     ["{\"a\": null}", "{\"a\": null, \"b\": null}"], ["{}", "{\"a\": null, \"b\": null, \"c\": null}"]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2, "properties": {"a": {"type": "null"}, "b": {}}, "additionalProperties": False},
     ["{\"a\": null}", "{\"b\": 1}", "{\"a\":null,\"b\":1}"], ["{}", "{\"c\": 1}"]),
    ({"type": "object", "maxProperties": 0}, ["{}"], ["{\"a\": 1}"]),
    ({"type": "string", "anyOf": [{"type": "null", "anyOf": [{"minLength": 1}, {}]}, {"maxLength": 1}]}, ["\"a\""], ["null", "\"ab\""]),
    # Objects with described properties are closed, at every depth.
    ({"type": "object", "properties": {"a": {"type": "null"}}}, ["{}", "{\"a\": null}"], ["{\"b\": 1}", "{\"a\": null, \"b\": 1}"]),
    ({"type": "object", "properties": {}}, ["{}"], ["{\"a\": 1}"]),
    ({"type": "object", "additionalProperties": True}, ["{}", "{\"a\": [1]}"], ["[]"]),
    ({"type": "object", "required": ["a"]}, ["{\"a\": 1, \"b\": 2}"], ["{\"b\": 2}"]),
    ({"type": "object", "properties": {"o": {"type": "object", "properties": {"a": {"type": "null"}}}, "free": {"type": "object"}}},
     ["{\"o\": {\"a\": null}, \"free\": {\"x\": 1}}"], ["{\"o\": {\"b\": 1}}", "{\"p\": 1}"]),
    ({"$defs": {"n": {"type": "object", "properties": {"a": {"type": "null"}}}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
     ["[{\"a\": null}, {}]"], ["[{\"b\": 1}]"]),
    ({"anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "null"}}}]},
     ["{\"a\": null}", "{\"b\": null}", "{}"], ["{\"a\": null, \"b\": null}", "{\"c\": 1}"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}]},
     ["{\"a\": null, \"b\": null}"], ["{\"a\": null, \"c\": null}"]),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {"properties": {"c": {"type": "null"}}}]},
     ["{\"a\": null, \"b\": null}", "{\"a\": null, \"c\": null}"], ["{\"b\": null, \"c\": null}", "{\"d\": 1}"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}}, {"properties": {"b": {"minimum": 5}}}]},
     ["{\"a\": null, \"b\": 5, \"c\": 1}"], ["{\"b\": 4}", "{\"c\": null}"]),
    ({"discriminator": {"propertyName": "k"}, "oneOf": [{"type": "object", "properties": {"k": {"const": "x"}, "n": {"type": "integer"}}},
                                                     {"type": "object", "properties": {"k": {"const": "y", "default": "y"}}}]},
     ["{\"k\": \"x\", \"n\": 1}", "{\"k\": \"y\"}"], ["{}", "{\"n\": 1}", "{\"k\": \"y\", \"n\": 1}"]),
    # Keywords beside each other, and keywords that need an automaton.
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5}, ["\"abc\"", "\"abcde\""], ["\"ab\"", "\"abcdef\"", "\"ab1\""]),
    ({"type": "string", "pattern": "^[a-z]+[0-9]*$", "minLength": 3, "maxLength": 5}, ["\"abc\"", "\"ab123\""], ["\"ab\"", "\"ab1234\"", "\"123\""]),
    ({"type": "string", "pattern": "\\S", "maxLength": 300}, ["\"a\"", "\" \u20ac \""], ["\" \"", "\"" + 301 * "a" + "\""]),
    ({"type": "string", "format": "date", "pattern": "^20", "maxLength": 10}, ["\"2024-02-29\""], ["\"1999-01-01\"", "\"2023-02-29\""]),
    ({"type": "string", "format": "email", "maxLength": 20}, ["\"ada@example.org\""], ["\"ada.lovelace@example.org\"", "\"ada\""]),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "z$"}], "type": "string", "maxLength": 4}, ["\"az\"", "\"a z\""], ["\"a\"", "\"z\""]),
    ({"type": "string", "pattern": "^(?!no$)(?=.*[a-m])[a-z]{1,3}$"}, ["\"nom\"", "\"a\""], ["\"no\"", "\"xyz\""]),
    ({"type": "string", "pattern": "^((?!foo).)*$"}, ["\"\"", "\"fo o\""], ["\"afoob\""]),
    ({"type": "string", "pattern": "^\\S+$"}, ["\"M\u00fcller\""], ["\"a b\"", "\"\u00a0\"", "\"\""]),
    ({"type": "string", "pattern": "^[^\\W\\d]+$"}, ["\"abc\""], ["\"a1\"", "\"-\""]),
    ({"enum": ["a", "bb", "cc", 1, 5, None], "pattern": "^(b|c)", "maxLength": 2, "maximum": 3}, ["\"bb\"", "\"cc\"", "1", "null"], ["\"a\"", "5"]),
    ({"type": "string", "not": {"enum": ["a", "bc"]}}, ["\"b\"", "\"abc\"", "\"\""], ["\"a\"", "\"bc\""]),
    ({"type": "string", "not": {"pattern": "^a"}}, ["\"ba\""], ["\"a\"", "\"ab\""]),
    ({"not": {"type": ["null", "number"]}}, ["\"a\"", "{}"], ["null", "1", "1.5"]),
    ({"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "null"}}}, ["{}", "{\"b\": null}"], ["{\"a\": 1}"]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1}, ["[\"c\"]", "[\"b\", \"a\", \"c\"]"],
     ["[]", "[\"a\",\"a\"]", "[\"a\",\"b\",\"a\"]"]),
    ({"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True, "maxItems": 2}, ["[]", "[true,null]", "[false]"], ["[true,true]", "[true,false,null]"]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "boolean"}}, ["{}", "{\"a\": true, \"b\": false}"],
     ["{\"c\": true}", "{\"a\": 1}"]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]", "maxLength": 3}, "minProperties": 2, "additionalProperties": {"type": "null"}},
     ["{\"a\": null, \"bcd\": null}"], ["{\"a\": null}", "{\"A\": null, \"a\": null}", "{\"abcd\": null, \"a\": null}"]),
    ({"type": "object", "patternProperties": {"^x-": {"type": "string"}, "n$": {"minLength": 2}}, "properties": {"a": {"type": "integer"}, "x-b": {"maxLength": 3}},
      "additionalProperties": {"type": "null"}},
     ["{\"a\": 1, \"x-b\": \"abc\", \"x-c\": \"\", \"n\": \"qq\", \"x-n\": \"qq\", \"z\": null}"],
     ["{\"a\": null}", "{\"x-b\": \"abcd\"}", "{\"x-c\": 1}", "{\"n\": \"q\"}", "{\"x-n\": 12}", "{\"z\": 1}"]),
    ({"type": "object", "patternProperties": {"^[a-z]$": {"type": "boolean"}}, "additionalProperties": False}, ["{}", "{\"a\": true}"], ["{\"ab\": true}", "{\"a\": 1}"]),
    ({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}, ["0", "5", "100"], ["3", "105", "-5"]),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}, ["0", "12", "-24"], ["4", "6", "16"]),
    ({"type": "integer", "multipleOf": 1000}, ["0", "25000"], ["100", "1500"]),
    ({"type": "number", "multipleOf": 0.25, "maximum": 3}, ["0.25", "-7.5", "3", "2.750"], ["0.2", "3.25", "1.255"]),
    ({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}, ["9223372036854775807", "-9223372036854775808", "0"],
     ["9223372036854775808", "-9223372036854775809"]),
    ({"type": "integer", "exclusiveMinimum": 9007199254740992}, ["9007199254740993"], ["9007199254740992"]),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "unevaluatedProperties": False}, ["{\"a\": null}"], ["{\"b\": 1}"]),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [], []),
]

# The same where jsonschema knows no better: older drafts, OpenAPI, null. Strict schemas, too, are taken.
OTHER_CASES = [
    ({"type": "string", "nullable": True, "maxLength": 2}, ["null", "\"ab\""], ["\"abc\"", "1"]),
    ({"type": "string", "nullable": True, "enum": ["a"]}, ["null", "\"a\""], ["\"b\""]),
    ({"$ref": "#/definitions/a", "nullable": True, "definitions": {"a": {"type": "string", "maxLength": 1}}}, ["null", "\"a\""], ["\"ab\""]),
    ({"type": "string", "nullable": False, "maxLength": 2}, ["\"ab\""], ["null"]),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}, ["4", "9"], ["3", "10"]),
    ({"type": "string", "format": "entity-id", "optional": True, "enumDescriptions": ["b"], "markdownDescription": "", "x-order": 1, "maxLength": 2}, ["\"ab\""], ["\"abc\""]),
    ({"type": "string", "format": "idn-email", "madeUp": {"not": {}}, "maxLength": 2}, ["\"ab\""], ["\"abc\""]),
    ({"type": "object", "properties": {"a": {"type": "string", "required": True}}}, ["{\"a\": \"\"}", "{}"], ["{\"a\": 1}"]),
    ({"type": "object", "properties": {"a": None, "b": {"type": "null"}}, "required": None}, ["{\"a\": 1, \"b\": null}"], ["{\"b\": 1}"]),
    ({"type": "string", "pattern": "(^|-)\\bab\\b"}, ["\"ab\"", "\"x-ab-c\""], ["\"abc\"", "\"xab\""]),
    ({"type": "string", "pattern": "^\\p{L}{1,3}$"}, ["\"\u00e9\u65e5a\""], ["\"1\"", "\"abcd\""]),
    ({"type": "string", "pattern": "^[\\p{Lu}\\d-]+\\P{L}$"}, ["\"A-1!\""], ["\"a!\"", "\"AB\""]),
    ({"type": "string", "pattern": "^(?<year>\\d{2})(?P<m>a)$"}, ["\"12a\""], ["\"12\""]),
    ("{\"type\": \"integer\", \"minimum\": 0, \"maximum\": 18446744073709551615, \"title\": \"\\\"1234567890123456789012\"}", ["18446744073709551615", "0"], ["-1", "99999999999999999999"]),
    ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, ["1.5", "-3"], []),
] + [({"type": ["object", "string"], key: None}, ["{\"a\": 1}", "\"abc\""], ["1"]) for key in (
    "required", "properties", "enum", "items", "minimum", "exclusiveMaximum", "minLength", "maxItems", "format", "pattern", "additionalProperties", "patternProperties", "propertyNames",
    "anyOf", "allOf", "$ref", "not", "if", "contains", "uniqueItems", "multipleOf", "prefixItems", "nullable", "$defs", "discriminator", "dependentRequired")]

# A strict schema is refused by the name of the keyword; another one is taken without the keyword, and takes the text.
LIMITS = [
    ({"properties": {"a": {"if": {}}}}, "\"if\" at /a", "{\"a\": 1}"),
    ({"type": "array", "uniqueItems": True}, "\"uniqueItems\"", "[1,1]"),
    ({"type": "integer", "multipleOf": 99991}, "\"multipleOf\"", "7"),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}, "\"minProperties\"", "{\"a\": 1}"),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": True, "maxProperties": 1}, "\"maxProperties\"", "{\"a\": 1, \"b\": 1}"),
    ({"type": "object", "propertyNames": {"anyOf": [{"maxLength": 3}]}}, "\"propertyNames\"", "{\"abcd\": 1}"),
    ({"type": "object", "patternProperties": {"(?<=a)b": {"type": "null"}}}, "\"patternProperties\"", "{\"ab\": 1}"),
    ({"type": "array", "contains": {}}, "\"contains\"", "[]"),
    # What a keyword that is not read describes may be there.
    ({"properties": {"a": {}}, "if": {"required": ["a"]}, "then": {"properties": {"b": {"type": "null"}}, "required": ["b"]}}, "\"if\"", "{\"a\": 1, \"b\": null}"),
    ({"allOf": [{"properties": {"a": {}}}, {"if": {}, "then": {"properties": {"b": {}}}}], "unevaluatedProperties": False}, "\"if\"", "{\"a\": 1, \"b\": null}"),
    ({"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}}}}, "\"dependentSchemas\"", "{\"a\": 1, \"b\": null}"),
    ({"properties": {"a": {}}, "dependencies": {"a": {"properties": {"b": {}}}}}, "\"dependencies\"", "{\"a\": 1, \"b\": null}"),
    ({"type": "array", "prefixItems": [{}], "contains": {"const": 1}, "unevaluatedItems": False}, "\"contains\"", "[2, 1]"),
    ({"dependentRequired": {}}, "\"dependentRequired\"", "1"),
    ({"not": {"required": ["a"]}}, "\"not\"", "{\"a\": 1}"),
    ({"type": "string", "pattern": "(?<=a)b"}, "\"pattern\" at /: a group that looks behind", "\"x\""),
    ({"type": "string", "pattern": "(a)\\1"}, "\"pattern\" at /: a back reference", "\"x\""),
    ({"type": "string", "format": "uri", "maxLength": 2083}, "\"maxLength\"", "\"a:b\""),
    ({"type": "string", "maxLength": 100000}, "\"maxLength\"", "\"a\""),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "\"oneOf\"", "1"),
    ({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]}, "\"oneOf\"", "1"),
    ({"$ref": "other.json"}, "\"$ref\"", "1"),
    ({"type": "integer", "minimum": 1e30}, "\"minimum\"", "1"),
]

REFUSED = [
    ({"not": {}}, "no text"),
    ({"$ref": "#/$defs/none"}, "no schema at"),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "left recursion"),
    ({"allOf": [{"$ref": "#"}]}, "refer to itself"),
    ({"type": "strin"}, "\"type\""),
    ({"type": "object", "properties": []}, "\"properties\""),
    ({"required": [1]}, "\"required\""),
    ({"minLength": -1}, "\"minLength\""),
    (False, "no text"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no text"),
    ({"type": "integer", "minimum": 3.2, "maximum": 3.8}, "no text"),
    ({"required": ["a"], "additionalProperties": False, "type": "object"}, "no text"),
    (3, "a schema is"),
]

# Large schemas. For each there is a simple way to compile it that would take minutes.
HOSTILE = [
    {"enum": list(range(100000))},
    {"$defs": {"e": {"enum": list(range(4000))}}, "allOf": [{"$ref": "#/$defs/e"}] * 250},
    {"oneOf": [{"enum": [f"{i}-{k}" for k in range(600)]} for i in range(120)]},
    {"type": "object", "properties": {f"p{i}": True for i in range(30000)}, "required": [f"p{i}" for i in range(30000)]},
    {"type": "object", "properties": {f"{i:04}" * 9: {"type": "null"} for i in range(4000)}, "additionalProperties": True},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 50}, "b": {"anyOf": [{"minLength": i} for i in range(50)]}}, "allOf": [{"$ref": "#/$defs/a"}] * 20},
    {"type": "string", "pattern": "(a|b|ab)*" * 3000},
    {"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 30000}, "maxItems": 30000}, "maxItems": 30000},
    {"type": "string", "pattern": "(?=.*a.{60})(?=.*b.{61})(?=.*c.{62})^.*d.{63}$"},
    {"type": "string", "pattern": "^(?:" + "".join(f"(?!.*{i}x)" for i in range(90)) + ".)*$"},
    {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"(a|b|ab){{{i},}}[ac]{{40}}", "maxLength": 900 + i} for i in range(60)}},
    {"type": "object", "properties": {f"p{i}": {"type": "integer", "multipleOf": 997 - i} for i in range(60)}},
    {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^\\p{{L}}[\\P{{Lu}}\\W]{{1,{i + 2}}}$"} for i in range(60)}},
    {"type": "array", "items": {"enum": [f"{i}" for i in range(63)]}, "uniqueItems": True, "maxItems": 30},
    {"enum": [f"{i:040}" for i in range(20000)], "pattern": "^[01]*2", "format": "uri"},
]

# Regular expressions that have to match whole texts. The texts are also checked with Python's re.
REGEXES = [
    ("ab*c", ["ac", "abbc", "xac", "acx", "a", ""]),
    ("^[0-9]{3}-[0-9]{4}$", ["555-1234", "555-123", "x555-1234", "555-12345"]),
    ("yes|no|^maybe$", ["yes", "no", "maybe", "yesno", "mayb", ""]),
    ("(a|bc){2,3}?d?", ["abc", "aaad", "bcbc", "a", "aaaa", "abcd"]),
    ("\\w+@\\w+\\.com", ["ada@mill.com", "@mill.com", "ada@mill.org", "a b@c.com"]),
    (".*", ["", "any \"thing\" \\ at all", "two\nlines"]),
    ("[^\"\\n]+", ["a'b\t", "\"", "a\n", "\u00e9\u20ac\U0001f600", ""]),
    ("(a|)b", ["ab", "b", "a"]),
    ("(a*)*b|(?:a?){3}|(?!x)[wxy]z", ["b", "aab", "aaa", "aaaa", "xz", "yz"]),
    ("(?=a)ab|(?P<n>c)", ["ab", "c", "b"]),
    ("\\bx\\b[ -a]\\by", ["x y", "xay", "x-y"]),
    ("a||b", ["", "a", "b", "ab"]),
    ("", ["", "a"]),
    ("\\s*\\{\\s*\\}", ["{}", " { \n}", "{"]),
    ("\u00e9[\u0430-\u044f]{2}", ["\u00e9\u0431\u0432", "\u00e9\u0431", "eab"]),
]
REFUSED_REGEXES = [("(?<=a)b", "looks behind"), ("(a)\\1", "back reference"), ("a(", "not closed"), ("a{9999999}", "repeat"), ("x^", "no text"), ("[a", "not closed"),
                   ("(?i)a", "flags"), ("\\p{Greek}", "general category"), ("(?:^a|\\b)*", "assertion"), ("a" * 20000, "at most 16384"), ("(a|b|ab)*" * 1500, "")]
CHOICES = [(["yes", "no"], ["y", "yess", ""]), (["a\"b", "a\\b", "a\nb", "\u20ac", "a\u0000b"], ["ab", "a"]), (["a", "ab", "abc", "a"], ["abcd", ""]), ([""], ["a"])]


class Walker:
    def __init__(self, vocabulary):
        self.process = subprocess.Popen([WALK] + vocabulary, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"grammar_walk ended at {json.dumps(request)}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        if self.process.wait():
            sys.exit("grammar_walk failed")


def random_bounds(seed):
    """Schemas with bounds of many shapes, and numbers around them."""
    rng = random.Random(seed)
    for _ in range(400 // SHARE):
        whole = rng.random() < 0.4

        def number():
            digits = rng.choice([1, 1, 2, 3, 5])
            value = rng.randrange(10 ** digits)
            return value if whole else round(value / 10 ** rng.randrange(digits + 1), 6)
        low, high = sorted([rng.choice([1, -1]) * number(), rng.choice([1, -1]) * number()])
        schema = {"type": "integer" if whole else "number"}
        if rng.random() < 0.8:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.8:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = high
        texts = set()
        for near in (low, high, 0, number(), -number()):
            for step in (0, 1, -1, 10, -10) + (() if whole else (0.1, -0.1, 0.01, 0.001, -0.001, 0.55)):
                value = near + step if whole else round(near + step, 8)
                text = str(value) if whole else f"{value:.8f}".rstrip("0").rstrip(".")
                texts.add(text)
                if not whole and "." in text:
                    texts.add(text + "0")
        yield schema, sorted(t for t in texts if t != "-0")


def check_case(walker, schema, good, bad, seed, n, failures):
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    reply = walker.ask(schema=schema, texts=good + bad, generate=n, seed=seed)
    if "error" in reply:
        failures.append(f"{schema}: {reply['error']}")
        return
    for text, taken in zip(good + bad, reply["texts"]):
        if taken != (text in good):
            failures.append(f"{schema}: {text!r} is {'taken' if taken else 'refused'}\n{reply['gbnf']}")
        if text in good and not validator.is_valid(json.loads(text)):
            failures.append(f"{schema}: {text!r} should not be among the good ones")
    done = [t for t in reply["generated"] if t is not None]
    if len(done) < n // 2:
        failures.append(f"{schema}: only {len(done)} of {n} came to an end")
    for text in done:
        try:
            validator.validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as e:
            failures.append(f"{schema}: generated {text!r}: {str(e).splitlines()[0]}")


def check_changed(walker, schema, good, seed, failures):
    """Changes valid texts by a byte or a piece. The grammar must refuse each changed text that is not valid."""
    rng = random.Random(seed)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    texts = []
    for text in good:
        for _ in range(60 // SHARE):
            at, to = sorted([rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)])
            piece = rng.choice(["", rng.choice("\"\\{}[]:, \n\t-+.0123456789abceflnrstux\u00e9\u0007"), text[at:to], "null", "1e5", "\\u0061"])
            end = rng.choice([at, min(at + 1, len(text)), to])
            texts.append(text[:at] + piece + text[end:])
    for text, taken in zip(texts, walker.ask(schema=schema, texts=texts).get("texts", [])):
        try:
            if taken:
                validator.validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as e:
            failures.append(f"{schema}: takes {text!r}: {str(e).splitlines()[0]}")


def check_others(walker, failures):
    """Formats, schemas of which jsonschema thinks otherwise, and keywords that cannot be honoured."""
    cases = OTHER_CASES + [({"type": "string", "format": name}, [json.dumps(t, ensure_ascii=False) for t in right], [json.dumps(t, ensure_ascii=False) for t in wrong])
                           for name, (right, wrong) in FORMATS.items()]
    for schema, good, bad in cases:
        reply = walker.ask(schema=schema, strict=True, texts=good + bad)
        wrong = [t for t, taken in zip(good + bad, reply.get("texts", [])) if taken != (t in good)]
        if "error" in reply or wrong:
            failures.append(f"{schema}: {reply.get('error')} {wrong}")
    for schema, why, text in LIMITS:
        reply = walker.ask(schema=schema, strict=True)
        if why not in reply.get("error", ""):
            failures.append(f"{schema}: wanted an error with {why!r}, got {str(reply)[:200]}")
        reply = walker.ask(schema=schema, texts=[text])
        if reply.get("texts") != [True]:
            failures.append(f"{schema}: does not take {text!r}: {str(reply)[:200]}")


def check_texts(walker, n, failures):
    """Expressions and choices."""
    asked = [({"regex": r}, texts, lambda t, r=r: re.fullmatch(r, t) is not None) for r, texts in REGEXES]
    asked += [({"choice": c}, c + others, lambda t, c=c: t in c) for c, others in CHOICES]
    for i, (request, texts, fits) in enumerate(asked):
        reply = walker.ask(texts=texts, generate=n, seed=i, **request)
        if "error" in reply or reply["texts"] != [fits(t) for t in texts]:
            failures.append(f"{request}: {reply.get('error')} {list(zip(texts, reply.get('texts', [])))}")
        failures += [f"{request}: generated {t!r}" for t in reply.get("generated", []) if t is not None and not fits(t)]
    for pattern, why in REFUSED_REGEXES:
        reply = walker.ask(regex=pattern)
        if why not in reply.get("error", ""):
            failures.append(f"{pattern[:50]}: wanted an error with {why!r}, got {str(reply)[:200]}")


def check(walker, n):
    failures = []
    for i, (schema, good, bad) in enumerate(CASES[:-1]):
        check_case(walker, schema, good, bad, i + 1, n, failures)
        if n > 8:
            check_changed(walker, schema, good, i + 1, failures)
    reply = walker.ask(schema=CASES[-1][0], texts=["[1]", "[]", "[1,2]", "[null]"], generate=0)
    if reply.get("texts") != [True, True, False, False]:
        failures.append(f"items as a list: {reply}")
    check_texts(walker, n, failures)
    check_others(walker, failures)
    for schema, why in REFUSED:
        reply = walker.ask(schema=schema)
        if why not in reply.get("error", ""):
            failures.append(f"{schema}: wanted an error with {why!r}, got {reply}")
    for schema in HOSTILE if n > 8 else []:
        begin = time.monotonic()
        reply = walker.ask(schema=schema)
        if time.monotonic() - begin > 20 * PATIENCE:
            failures.append(f"{str(schema)[:80]}: took {time.monotonic() - begin:.1f} s")
        if VERBOSE:
            print(f"{time.monotonic() - begin:.2f} s: {str(schema)[:60]}: {reply.get('error', 'fine')}")
    for schema, texts in random_bounds(5) if n > 8 else []:
        reply = walker.ask(schema=schema, texts=texts)
        want = [jsonschema.Draft202012Validator(schema).is_valid(json.loads(t)) for t in texts]
        if "error" in reply and not any(want):
            continue
        if reply.get("texts") != want:
            failures.append(f"{schema}: {[t for t, a, b in zip(texts, reply.get('texts', want), want) if a != b][:5]} {reply.get('error')}")
    return failures


def main():
    vectors = os.path.join(os.environ.get("MILLRACE_TEST_VECTORS", ""), "tokenizers", "ggml-vocab-{}.gguf")
    vocabularies = [([], 24 // SHARE + 2)]
    if SHARE == 1:
        vocabularies += [([vectors.format(v)], n) for v, n in (("llama-spm", 8), ("qwen2", 2)) if os.path.exists(vectors.format(v))]
    for vocabulary, n in vocabularies:
        walker = Walker(vocabulary)
        failures = check(walker, n)
        walker.end()
        if failures:
            sys.exit(f"{vocabulary}: {len(failures)} failures\n" + "\n".join(failures[:20]))
    print(f"{len(CASES)} schemas, {len(REFUSED)} refused, {len(vocabularies)} vocabularies")


main()
