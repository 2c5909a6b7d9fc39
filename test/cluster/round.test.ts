/** A share of the conformance tests against a cluster of three hosts, each of whose requests comes to the next host. */
import { describe } from "node:test";
import { lacksPostgres } from "./postgres-server.ts";

const title = "requests of which each comes to the next host";
if (lacksPostgres === false) {
  process.env.CAPSULE_TEST_CLUSTER = "round";
  const names = ["processes", "ports", "keys"];
  const files = await Promise.all(names.map((name) => import(`../conformance/sections/${name}.ts`)));
  describe(title, { concurrency: 3 }, () => {
    for (const begin of files.flatMap((file) => Object.values(file))) (begin as () => void)();
  });
} else describe(title, { skip: lacksPostgres });
