/** The network of a capsule on the wire: its policy, what became of it, and links to its ports. */
import Type, { type Static } from "typebox";
import type { Limits } from "./limits.ts";
import { checkedByRoute, Nullable, Timestamp } from "./schema.ts";

/** The destinations of a capsule: none, those that `allow` names, every public address. */
export const egresses = ["none", "allowlist", "public"] as const;
export type Egress = (typeof egresses)[number];

const EgressWord = Type.Unsafe<Egress>({
  type: "string",
  enum: [...egresses],
  description:
    "What the capsule may reach: nothing, what `allow` names, or every public address. Default: the service's, public unless the operator has set another.",
});

const allowMeaning =
  "Domains, `*.` and a domain, IPv4 addresses and ranges, each with `:port` or without: a domain without one means 80 and 443, an " +
  "address every port.";
const denyMeaning = "IPv4 addresses and ranges, each with `:port` or without. They go before `allow`.";
const publicMeaning = "Ports whose URL asks for no key.";
const hostMeaning = "The Host that the capsule's servers see, such as `localhost:{port}`; null: the client's.";

/** One rule of `inject`. Values of headers go in and never come out. */
const InjectRule = Type.Object({ host: Type.String(), headers: Type.Record(Type.String(), Type.Null()) });
const injectMeaning =
  "Requests of the capsule to http://{host} leave as HTTPS with these headers, whose values the capsule never has. Every answer shows " +
  "values as null.";

const fields = {
  egress: EgressWord,
  allow: Type.Array(Type.String(), { description: allowMeaning }),
  deny: Type.Array(Type.String(), { description: denyMeaning }),
  public_ports: Type.Array(Type.Integer(), { description: publicMeaning }),
  host_header: Nullable(Type.String({ description: hostMeaning })),
  inject: Type.Array(InjectRule, { description: injectMeaning }),
};

export const Network = Type.Object(fields, {
  title: "Network",
  description: "As it was asked for, with the defaults of what was left out.",
});
export type Network = Static<typeof Network>;

/** For the description only: `network/policy.ts` checks it. */
export function NetworkBody(limits: Limits) {
  const { network_entries_max: maxItems, public_ports_max, inject_rules_max, inject_value_max_bytes } = limits;
  const value = Type.String({ maxLength: inject_value_max_bytes, pattern: "^[\\t\\x20-\\x7e]*$" });
  const headers = Type.Record(Type.String(), Nullable(value));
  const rule = Type.Object({ host: Type.String({ description: "One domain." }), headers });
  const givenMeaning = `${injectMeaning} null keeps the stored value of that host and name; a rule that is left out is removed.`;
  const entries = (description: string) => Type.Optional(Type.Array(Type.String(), { maxItems, description }));
  const ports = Type.Array(Type.Integer({ minimum: 1, maximum: 65_535 }), { maxItems: public_ports_max });
  return checkedByRoute(
    Type.Object({
      egress: Type.Optional(EgressWord),
      allow: entries(allowMeaning),
      deny: entries(denyMeaning),
      public_ports: Type.Optional({ ...ports, description: publicMeaning }),
      host_header: Type.Optional(Nullable(Type.String({ description: hostMeaning }))),
      inject: Type.Optional(Type.Array(rule, { maxItems: inject_rules_max, description: givenMeaning })),
    }),
  );
}

export const verdicts = ["allowed", "denied", "failed"] as const;

const Decision = Type.Object({
  at: Timestamp,
  verdict: Type.Unsafe<(typeof verdicts)[number]>({ type: "string", enum: [...verdicts] }),
  reason: Type.String(),
  host: Type.Optional(Type.String()),
  address: Type.Optional(Type.String()),
  port: Type.Optional(Type.Integer()),
  count: Type.Integer(),
});
export type NetworkDecision = Static<typeof Decision>;

export const NetworkState = Type.Object(
  {
    ...fields,
    effective: Type.Object(
      {
        egress: { ...EgressWord, description: "At most the operator's ceiling." },
        allow: Type.Array(Type.String()),
        deny: Type.Array(Type.String()),
      },
      { description: "What holds, by the rules of the operator too." },
    ),
    counters: Type.Object({
      connections_open: Type.Integer(),
      connections_total: Type.Integer(),
      denied_total: Type.Integer(),
      bytes_out: Type.Integer(),
      bytes_in: Type.Integer(),
    }),
    recent: Type.Array(Decision, {
      description:
        "The last 100 different decisions about connections and names while the capsule runs, newest last; one that comes again moves to the end.",
    }),
    unsupported: Type.Boolean({
      description:
        "Whether the capsule has no way out, whatever its policy, as its machine was made before there was one.",
    }),
  },
  { title: "NetworkState" },
);
export type NetworkState = Static<typeof NetworkState>;

/** Life of a link to a port. */
export const portUrlDefaultSec = 3_600;

export function PortUrlBody(limits: Limits) {
  return Type.Object({
    expires_sec: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: limits.port_token_max_sec,
        default: Math.min(portUrlDefaultSec, limits.port_token_max_sec),
        description: "Life of the token.",
      }),
    ),
  });
}

export const PortUrl = Type.Object(
  {
    url: Type.String({
      format: "uri",
      description: "The port's URL with the token in its query: opens it in a browser.",
    }),
    token: Type.String({ description: "For the header X-Capsule-Token; opens this port of this capsule only." }),
    expires_at: {
      ...Timestamp,
      description: "It ends before with the capsule, and when the capsule's tokens are revoked.",
    },
  },
  { title: "PortUrl" },
);
export type PortUrl = Static<typeof PortUrl>;
