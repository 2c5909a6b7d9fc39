/** Random policies against a model: each entry is built from parts of which the test knows whether they are good and what they mean. */
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { mutations, randomOf } from "../../test/relay/mutations.ts";
import { CapsuleError } from "../wire/errors.ts";
import { decodePolicy, encodePolicy, parseNetwork } from "./policy.ts";

const limits = { network_entries_max: 8, public_ports_max: 4 };

interface Entry {
  text: string;
  kind: "domain" | "addresses" | "bad";
  /** As it is kept. */
  kept: string;
  /** The bits that all its addresses have in common, as text of 0 and 1. */
  prefix?: string;
  port: number | undefined;
}

/** Prefixes of reserved ranges, in bits. */
const reserved = [
  ...["00000000", "00001010", "0110010001", "01111111", "1010100111111110", "101011000001", "110000000000000000000000"],
  ...["110000000000000000000010", "110000000101100001100011", "1100000010101000", "110001100001001"],
  ...["110001100011001101100100", "110010110000000001110001", "111"],
];

const port = fc.option(fc.oneof(fc.integer({ min: 1, max: 65_535 }), fc.constant(25)), { nil: undefined });
const suffixOf = (each: number | undefined) => (each === undefined ? "" : `:${each}`);

const domain = fc
  .tuple(
    fc.array(fc.stringMatching(/^[a-zA-Z0-9_-]{1,12}$/), { maxLength: 4 }),
    fc.stringMatching(/^[a-wyzA-WYZ]{1,8}$/),
    port,
  )
  .chain(([labels, last, chosen]) =>
    fc.tuple(fc.boolean(), fc.boolean()).map(([isWildcard, hasDot]): Entry => {
      const name = `${isWildcard ? "*." : ""}${[...labels, last].join(".")}`;
      const suffix = suffixOf(chosen);
      const kept = `${name.toLowerCase()}${suffix}`;
      return { text: `${name}${hasDot ? "." : ""}${suffix}`, kind: "domain", kept, port: chosen };
    }),
  );

/** Bits of a reserved range or none, then random ones. */
const addresses = fc
  .tuple(
    fc.constantFrom("", ...reserved),
    fc.stringMatching(/^[01]{32}$/),
    fc.option(fc.integer({ min: 0, max: 32 })),
    port,
  )
  .map(([head, tail, length, chosen]): Entry => {
    const bits = (head + tail).slice(0, 32);
    const address = bits.match(/.{8}/g)!.map((byte) => Number.parseInt(byte, 2));
    const text = `${address.join(".")}${length === null ? "" : `/${length}`}${suffixOf(chosen)}`;
    return { text, kind: "addresses", kept: text, prefix: bits.slice(0, length ?? 32), port: chosen };
  });

/** A good entry with a character that no entry has, or an end that none has. */
const bad = fc
  .tuple(fc.oneof(domain, addresses), fc.constantFrom(..." \t\n\0/%@,;()[]'\"#?&=+!$\\{}"), fc.nat())
  .map(([{ text }, character, at]): Entry => {
    const place = at % (text.length + 1);
    return { text: `${text.slice(0, place)}${character}${text.slice(place)}`, kind: "bad", kept: "", port: undefined };
  })
  .filter(({ text }) => !/^[0-9.]+\/[0-9]{1,2}(:\d+)?$/.test(text));

const entry = fc.oneof({ weight: 4, arbitrary: domain }, { weight: 4, arbitrary: addresses }, bad);
const list = fc.array(entry, { maxLength: 9 });

/** The field of the first refusal; undefined: the policy is taken. */
function expected(allow: Entry[], deny: Entry[]): string | undefined {
  for (const [name, entries] of [["allow", allow] as const, ["deny", deny] as const]) {
    if (entries.length > limits.network_entries_max) return `network.${name}`;
    const at = entries.findIndex(({ kind }) => kind === "bad" || (name === "deny" && kind === "domain"));
    if (at !== -1) return `network.${name}[${at}]`;
  }
  const at = allow.findIndex(
    (each) => each.port === 25 || reserved.some((range) => each.prefix?.startsWith(range) ?? false),
  );
  return at === -1 ? undefined : `network.allow[${at}] reserved`;
}

test("each policy is taken or refused as the model says, and is kept in one form", () => {
  fc.assert(
    fc.property(list, list, (allow, deny) => {
      const texts = { allow: allow.map(({ text }) => text), deny: deny.map(({ text }) => text) };
      const refusal = expected(allow, deny);
      try {
        const policy = parseNetwork(texts, limits);
        assert.equal(undefined, refusal, "taken");
        assert.deepEqual(
          policy.allow,
          allow.map(({ kept }) => kept),
        );
        assert.deepEqual(
          policy.deny,
          deny.map(({ kept }) => kept),
        );
        assert.deepEqual(decodePolicy(encodePolicy(policy)), policy);
        assert.deepEqual(parseNetwork(policy, limits).allow, policy.allow, "parsed again");
      } catch (error) {
        if (!(error instanceof CapsuleError)) throw error;
        const { code, details } = error;
        assert.equal(`${details?.field}${code === "forbidden" ? " reserved" : ""}`, refusal, error.message);
      }
    }),
    { numRuns: 3_000 },
  );
});

test("any text and any JSON is taken or refused with a field, within the form that is kept", (t) => {
  const kept =
    /^(?:(?:\*\.)?(?=.{1,253}(?::|$))[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*|(?:\d{1,3}\.){3}\d{1,3}(?:\/\d{1,2})?)(?::[1-9]\d{0,4})?$/;
  const value = fc.oneof(
    fc.record({ allow: fc.array(fc.string({ unit: "binary", maxLength: 40 }), { maxLength: 3 }) }),
    fc.record({ allow: fc.array(fc.stringMatching(/^[a-z*.:/0-9x-]{0,12}$/), { maxLength: 3 }) }),
    fc.jsonValue(),
  );
  const check = (each: unknown) => {
    try {
      const { allow, deny } = parseNetwork(each, limits);
      for (const text of [...allow, ...deny]) assert.match(text, kept);
    } catch (error) {
      if (!(error instanceof CapsuleError)) throw error;
      assert.match(String(error.details?.field), /^network(?:\.[a-z_]+(?:\[\d\])?)?$/);
    }
  };
  fc.assert(fc.property(value, check), { numRuns: 5_000 });

  const { random, seed } = randomOf();
  t.diagnostic(`seed ${seed}`);
  const entries = [
    "*.api.example:8443",
    "8.8.8.0/24:53",
    "xn--bcher-kva.example.",
    "bücher.example",
    "[::1]:80",
    "0x7f.1",
  ];
  const bytes = entries.map((each) => Buffer.from(each));
  for (const mutated of mutations(bytes, random)) check({ allow: [`${mutated}`], deny: [mutated.toString("latin1")] });
});
