/**
 * A share of the conformance tests against a cluster of three hosts, whose requests come to a host that holds no capsule. All of them:
 * CAPSULE_TEST_CLUSTER=other, or round, with test/conformance/suite.test.ts.
 */
import { describe } from "node:test";
import { usualForm } from "./as-one.ts";
import { lacksPostgres } from "./postgres-server.ts";

if (lacksPostgres === false) {
  process.env.CAPSULE_TEST_CLUSTER ??= usualForm;
  const names = ["capsules", "files", "ports", "port-urls", "tickets", "keys"];
  const files = await Promise.all(names.map((name) => import(`../conformance/sections/${name}.ts`)));
  describe("requests to a host that holds no capsule", { concurrency: 3 }, () => {
    for (const begin of files.flatMap((file) => Object.values(file))) (begin as () => void)();
  });
} else describe("requests to a host that holds no capsule", { skip: lacksPostgres });
