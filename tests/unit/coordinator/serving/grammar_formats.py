# SPDX-License-Identifier: Apache-2.0
"""Right and wrong values of the formats of JSON Schema, by the RFCs: 40 right ones and 20 wrong ones at least."""

HEX = "0123456789abcdef"


def uuid(i):
    text = "".join(HEX[(i * (k + 7) + k // (1 + i % 5)) % 16] for k in range(32))
    text = text.upper() if i % 3 == 0 else text
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


DATE = [f"{y:04}-{m:02}-{d:02}" for y, m, d in (
    (2024, 2, 29), (2000, 2, 29), (1600, 2, 29), (0, 2, 29), (400, 2, 29), (1996, 2, 29), (2023, 2, 28), (1900, 2, 28), (2100, 2, 28), (0, 1, 1),
    (1, 1, 1), (9999, 12, 31), (1970, 1, 1), (1985, 4, 12), (1990, 12, 31), (2026, 11, 28), (1000, 10, 10))] + [
    f"2025-{m:02}-{d:02}" for m, last in ((1, 31), (3, 31), (4, 30), (5, 31), (6, 30), (7, 31), (8, 31), (9, 30), (10, 31), (11, 30), (12, 31), (2, 28)) for d in (1, last)]
WRONG_DATE = ["", "2023-02-29", "1900-02-29", "2100-02-29", "2024-02-30", "2024-04-31", "2024-06-31", "2024-09-31", "2024-11-31", "2024-01-32", "2024-00-10",
              "2024-13-01", "2024-01-00", "24-01-01", "02024-01-01", "2024-1-1", "2024/01/01", "20240101", "2024-01-01T", " 2024-01-01", "2024-01", "2024-W01-1", "-2024-01-01"]
TIME = ["00:00:00Z", "23:59:59Z", "08:30:06Z", "08:30:06z", "12:34:56+00:00", "12:34:56-00:00", "12:34:56+23:59", "12:34:56-23:59", "23:20:50.52Z",
        "08:30:06.283185Z", "00:00:00.0Z", "17:00:00.123456789+05:30", "17:00:00.1-03:30", "17:00:00+05:45", "17:00:00+12:45", "17:00:00-08:00", "19:59:59.999z",
        "20:00:00+14:00", "09:09:09.000000000000000000000001Z", "10:10:10-12:00", "23:59:60Z", "23:59:60z", "23:59:60+00:00", "23:59:60-00:00", "23:59:60.5Z",
        "15:59:60-08:00", "00:59:60+01:00", "01:29:60+01:30", "23:29:60+23:30", "00:29:60-23:30", "05:29:60+05:30", "05:44:60+05:45", "12:44:60+12:45",
        "20:29:60-03:30", "18:59:60.123-05:00", "13:59:60+14:00", "08:59:60+09:00", "01:01:01+01:01", "22:22:22-22:22", "12:00:00.00Z"]
WRONG_TIME = ["", "24:00:00Z", "23:60:00Z", "23:59:61Z", "22:59:60Z", "23:58:60Z", "23:59:60+01:00", "23:59:60-01:00", "00:59:60+02:00", "12:00:00", "12:00Z", "12:00:00.Z",
              "12:00:00,5Z", "12:00:00+24:00", "12:00:00+01:60", "12:00:00+1:00", "12:00:00+0100", "12:00:00 Z", "8:30:06Z", "08:30:06 PST", "08:30:06ZZ", "T08:30:06Z"]
DURATION = ["P1Y", "P1M", "P1D", "P1W", "PT1H", "PT1M", "PT1S", "P1Y2M", "P1Y2M3D", "P2M3D", "P0D", "PT0S", "P4W", "P52W", "P1DT12H", "PT36H", "P3Y6M4DT12H30M5S",
            "P1YT1H", "P1MT1M", "P1DT1S", "P1Y1MT1H1M1S", "PT1H30M", "PT1H30M5S", "PT30M5S", "P10Y", "P100D", "P12345D", "PT86400S", "P99999Y", "P0Y0M0DT0H0M0S",
            "P7D", "P1M15D", "P2Y6MT6H", "PT90M", "PT000001S", "P5DT4H3M2S", "P18M", "P1Y1M1DT1H1M1S", "P0W", "PT123456789S"]
WRONG_DURATION = ["", "P", "PT", "1D", "P1", "P1DT", "P1S", "PT1D", "PT1Y", "P1D2H", "P2D1Y", "P1Y2W", "P1W2D", "P-1D", "-P1D", "P1.5D", "P1D ", "P1H", "PT1H1D", "P1M1Y", "PT1S1M", "P1YT", "p"]
EMAIL = ["joe@example.com", "joe.bloggs@example.com", "te~st@example.com", "~test@example.com", "test~@example.com", "\"joe bloggs\"@example.com", "\"joe..bloggs\"@example.com",
         "\"joe@bloggs\"@example.com", "joe.bloggs@[127.0.0.1]", "joe.bloggs@[IPv6:::1]", "joe@[IPv6:2001:db8::1]", "te.s.t@example.com", "a@b", "root@localhost", "a.b.c.d.e.f@x.org",
         "first+tag@gmail.com", "o'brien@example.ie", "anna@mail.eu-west-1.corp.example.co.uk", "x_y-z@a-b.c-d.e", "1@2.3", "!#$%&'*+/=?^_`{|}~-@example.com",
         "a" * 64 + "@example.com", "a@" + "b" * 63 + ".com", "user@sub.sub.sub.sub.sub.sub.sub.sub.example.museum", "\"\"@example.com", "\"a\\\"b\"@example.com", "\"\\\\\"@b.c",
         "no-reply@notifications.service.internal.example.com", "USER@EXAMPLE.COM", "a@xn--bcher-kva.example", "customer/department=shipping@example.com", "$A12345@example.com",
         "!def!xyz%abc@example.com", "_somename@example.com", "a" * 30 + "." + "b" * 33 + "@c.d", "very.common@example.com", "long.email-address-with-hyphens@and.subdomains.example.com",
         "x@example.com", "\"very.(),:;<>[]\\\".VERY.\\\"very@\\\\ \\\"very\\\".unusual\"@strange.example.com", "example@s.example"]
WRONG_EMAIL = ["", "joe", "@example.com", "joe@", ".joe@example.com", "joe.@example.com", "jo..e@example.com", "joe@-example.com", "joe@example-.com", "joe@example..com", "joe@.com",
               "joe@example.com.", "joe bloggs@example.com", "joe@exa_mple.com", "joe@[127.0.0.300]", "joe@[127.0.0.1", "joe@[::1]", "\"joe@example.com", "a@b@c", "joe@exam ple.com",
               "a" * 65 + "@example.com", "a@" + "b" * 64, "joe@invalid=domain.com", "J\u00f6rg@example.com"]
LABELS = "one two three four five six seven eight nine ten".split()
HOSTNAME = [".".join(LABELS[:n]) for n in range(1, 11)] + [
    "localhost", "example.com", "www.example.com", "a", "A", "1", "a1", "1a", "a-b", "a--b", "a" * 63, "a" * 63 + "." + "b" * 63 + "." + "c" * 63, "xn--bcher-kva.example",
    "my-db.abc123.eu-west-1.rds.amazonaws.com", "postgres.default.svc.cluster.local", "4.example", "3com.com", "HOST.Example.COM", "x.y.z", "node-01.rack-2.dc.example.net",
    "ec2-3-4-5-6.compute-1.amazonaws.com", "0.0", "127.0.0.1", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p", "s-1-2-3", "very-long-name-of-a-service-in-some-namespace.ns.svc.cluster.local",
    "1.2.3.4.in-addr.arpa", "example.museum", "t.co", "a0.b1.c2"]
WRONG_HOSTNAME = ["", ".", "-a", "a-", "a..b", ".a", "a.", "a_b", "_a", "a b", "a.-b", "a-.b", "a" * 64, "b." + "a" * 64 + ".com", "h\u00f6st", "a/b", "a:80", "a@b", "*.example.com", "a,b", "[::1]", "exam ple"]
IPV4 = ["0.0.0.0", "255.255.255.255", "127.0.0.1", "192.168.10.254", "10.0.0.1", "172.16.0.1", "8.8.8.8", "1.2.3.4", "100.100.100.100", "199.199.199.199", "200.209.210.219"] + [
    f"{i}.{255 - i}.{i * 3 % 256}.{i * 7 % 256}" for i in range(9, 256, 8)]
WRONG_IPV4 = ["", "1.2.3", "1.2.3.4.5", "256.0.0.1", "1.2.3.256", "01.2.3.4", "1.02.3.4", "1.2.3.00", "1..2.3", ".1.2.3.4", "1.2.3.4.", "1.2.3.-4", "1,2,3,4", "1.2.3.4/24", "0x7f.0.0.1",
              "2130706433", "999.1.1.1", "1.2.3.a", " 1.2.3.4", "300.300.300.300", "1.2.3.1000", "::1"]
IPV6 = ["::", "::1", "1::", "::ffff:192.0.2.1", "2001:db8::", "2001:db8::1", "fe80::1", "ff02::1", "1:2:3:4:5:6:7:8", "2001:0db8:85a3:0000:0000:8a2e:0370:7334", "ABCD:EF01:2345:6789:ABCD:EF01:2345:6789",
        "2001:DB8:0:0:8:800:200C:417A", "2001:db8::8:800:200c:417a", "FF01::101", "::13.1.68.3", "::FFFF:129.144.52.38", "0:0:0:0:0:0:0:0", "1::8", "1:2::8", "1:2:3::8", "1:2:3:4::8", "1:2:3:4:5::8",
        "1:2:3:4:5:6::8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8", "1:2::4:5:6:7:8", "1:2:3::5:6:7:8", "1:2:3:4::6:7:8", "1:2:3:4:5::7:8", "1:2:3:4:5:6:1.2.3.4", "1::1.2.3.4",
        "1:2:3:4:5::1.2.3.4", "64:ff9b::192.0.2.33", "::0:0", "a::b:c", "1:2::", "::8", "::1.2.3.4", "fe80:0:0:0:204:61ff:fe9d:f156"]
WRONG_IPV6 = ["", ":", ":::", "1", "1:2", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "::12345", "g::", "1:2:3:4:5:6:7:8::", "::1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:1.2.3.4", "::1.2.3",
              "::256.1.1.1", "1.2.3.4", ":1:2:3:4:5:6:7", "1:2:3:4:5:6:7:", "fe80::1%eth0", "[::1]", "::1/64", " ::1", "1:::2"]
URI = ["http://example.com", "http://example.com/", "https://localhost:27017/x", "https://my-db.abc123.eu-west-1.rds.amazonaws.com/x", "s3://bucket/key", "postgres://user:pass@localhost/shop",
       "mongodb+srv://cluster0.abc.mongodb.net/db?retryWrites=true&w=majority", "urn:isbn:0451450523", "urn:oasis:names:specification:docbook:dtd:xml:4.1.2", "mailto:John.Doe@example.com",
       "news:comp.infosystems.www.servers.unix", "tel:+1-816-555-1212", "telnet://192.0.2.16:80/", "ldap://[2001:db8::7]/c=GB?objectClass?one", "ftp://ftp.is.co.za/rfc/rfc1808.txt",
       "file:///etc/hosts", "file:/etc/hosts", "data:text/plain,hello%20world", "http://foo.bar/?baz=qux#quux", "http://foo.com/blah_(wikipedia)_blah#cite-1", "http://foo.bar/?q=Test%20URL-encoded%20stuff",
       "http://xn--nw2a.xn--j6w193g/", "http://-.~_!$&'()*+,;=:%40:80%2f::::::@example.com", "http://223.255.255.254", "http://[::1]:8080/", "http://[v1.a:b]/", "http://example.com:80", "http://example.com:",
       "http://user@host", "HTTP://EXAMPLE.COM/%7Efoo", "about:blank", "javascript:void(0)", "git+ssh://git@github.com/a/b.git", "a:", "x-y.z+1:q", "http://a/b//c///d", "http://a?b?c/d", "http://a#b/c?d",
       "http:", "spotify:track:6rqhFgbbKwnb9MLmUQDhG6", "ws://127.0.0.1:9000/socket?token=a.b.c", "http://" + "a" * 300 + ".b/" + "c" * 300]
WRONG_URI = ["", "example.com", "//foo.bar/?baz", "/abc", "abc", "\\\\WINDOWS\\file", "http:// fail.com", ":// fail", "bar,baz:foo", "1http://a", "http://a b", "http://a/<b>", "http://a/{b}", "http://a/b^c",
             "http://a/b`c", "http://a/b|c", "http://a/%zz", "http://a/%2", "http://a/\"b\"", "https://[@example.org/test", "http://a:80a/", "http://[::1", "http://a#b#c", "http://\u00e9.com", "http://a/\u20ac"]
WRONG_UUID = ["", "123e4567", "123e4567-e89b-12d3-a456", "123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400", "123e4567-e89b-12d3-a456-4266141740000", "g23e4567-e89b-12d3-a456-426614174000",
              "{123e4567-e89b-12d3-a456-426614174000}", "123e4567-e89b-12d3-a456_426614174000", "123e456-7e89b-12d3-a456-426614174000", " 123e4567-e89b-12d3-a456-426614174000", "urn:uuid:123e4567-e89b-12d3-a456-426614174000",
              "123e4567-e89b-12d3-a456-426614174000 ", "123e4567--e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a45-6426614174000", "123e4567-e89-b12d3-a456-426614174000", "----", "00000000-0000-0000-0000-00000000000g",
              "123e4567-e89b-12d3-a456-426614174000-1", "\u0661\u0662\u0663e4567-e89b-12d3-a456-426614174000"]

FORMATS = {
    "date": (DATE, WRONG_DATE),
    "time": (TIME, WRONG_TIME),
    "date-time": ([d + "tT"[i % 3 > 0] + t for i, (d, t) in enumerate(zip(DATE, TIME))], [d + "T" + TIME[0] for d in WRONG_DATE] + [DATE[0] + "T" + t for t in WRONG_TIME] + [
        "2024-02-29 00:00:00Z", "2024-02-29", "2024-02-2900:00:00Z"]),
    "duration": (DURATION, WRONG_DURATION),
    "email": (EMAIL, WRONG_EMAIL),
    "hostname": (HOSTNAME, WRONG_HOSTNAME),
    "ipv4": (IPV4, WRONG_IPV4),
    "ipv6": (IPV6, WRONG_IPV6),
    "uri": (URI, WRONG_URI),
    "uuid": ([uuid(i) for i in range(38)] + ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"], WRONG_UUID),
}
for _name, (_right, _wrong) in FORMATS.items():
    assert len(set(_right)) >= 40 and len(set(_wrong)) >= 20, (_name, len(set(_right)), len(set(_wrong)))
