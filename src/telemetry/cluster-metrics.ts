/** Metrics of a host's part in its cluster. */
import { Counter, Gauge, type Registry } from "prom-client";
import { registerGauge } from "./gauge.ts";

export interface ClusterReport {
  isDatabaseUp: boolean;
  copyLagSec: number;
  contradictions: number;
  isPutBack: boolean;
  /** Requests that were passed on to other hosts, by outcome. */
  forwarded: Readonly<Record<string, number>>;
  /** Released capsules that this host was to get, by outcome. */
  acquires: Readonly<Record<string, number>>;
  /** The other hosts, by their state. */
  hosts: Readonly<Record<string, number>>;
  /** Statements to the database, by outcome. */
  statements: Readonly<Record<string, number>>;
  /** Undefined: the cluster has no bucket. */
  bucket?: BucketReport | undefined;
}

export interface BucketReport {
  isUp: boolean;
  /** Paused capsules that only this host has, and how long the first of them has been due for the bucket. */
  unreleased: number;
  unreleasedSec: number;
}

type Reading<T> = [name: string, help: string, read: (of: T) => number];

const ofHost: Reading<ClusterReport>[] = [
  ["database_up", "1: the cluster's database answers this host.", ({ isDatabaseUp }) => Number(isDatabaseUp)],
  ["copy_lag_seconds", "Age of the oldest change here that other hosts do not show.", ({ copyLagSec }) => copyLagSec],
  [
    "contradictions",
    "Capsules and templates about which this host and the cluster disagree.",
    ({ contradictions }) => contradictions,
  ],
  [
    "database_put_back",
    "1: the cluster's database may have forgotten what it had committed, and nothing is decided.",
    ({ isPutBack }) => Number(isPutBack),
  ],
];

const ofBucket: Reading<BucketReport>[] = [
  ["bucket_up", "1: the cluster's bucket has answered this host's last request.", ({ isUp }) => Number(isUp)],
  ["unreleased_capsules", "Paused capsules that only this host has.", ({ unreleased }) => unreleased],
  [
    "unreleased_age_seconds",
    "Time for which the first capsule that only this host has is due for the bucket: since CAPSULE_RELEASE_AFTER_SEC after its pause or the server's start.",
    ({ unreleasedSec }) => unreleasedSec,
  ],
];

export function registerCluster(report: () => ClusterReport, registers: Registry[]): void {
  for (const [name, help, read] of ofHost)
    registerGauge(`capsule_cluster_${name}`, help, () => read(report()), registers);
  // A cluster gets a bucket by a restart of its hosts.
  if (report().bucket !== undefined)
    for (const [name, help, read] of ofBucket)
      registerGauge(`capsule_cluster_${name}`, help, () => read(report().bucket!), registers);
  new Gauge({
    name: "capsule_cluster_hosts",
    help: "Other hosts by their state as this one sees it; unreachable: a heartbeat was seen, and it takes no connection from here.",
    ...{ labelNames: ["state"], registers },
    collect() {
      for (const [state, count] of Object.entries(report().hosts)) this.set({ state }, count);
    },
  });
  const counters: [name: string, help: string, read: (of: ClusterReport) => Readonly<Record<string, number>>][] = [
    [
      "forwarded_requests",
      "Requests passed on: answered, unavailable: not carried out; given_up: the other host may have carried it out.",
      ({ forwarded }) => forwarded,
    ],
    ["acquires", "Released capsules that this host was to get, by outcome.", ({ acquires }) => acquires],
    [
      "statements",
      "Statements to the cluster's database, heartbeats included; unanswered: each attempt without an answer in its time.",
      ({ statements }) => statements,
    ],
  ];
  for (const [name, help, read] of counters) {
    new Counter({
      ...{ name: `capsule_cluster_${name}_total`, help, labelNames: ["outcome"], registers },
      collect() {
        this.reset();
        for (const [outcome, count] of Object.entries(read(report()))) this.inc({ outcome }, count);
      },
    });
  }
}
