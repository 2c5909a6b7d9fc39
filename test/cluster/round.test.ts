/** A share of the conformance tests against a cluster of three hosts, each of whose requests comes to the next host. */
import { describe } from "node:test";
import { isLong } from "../faults/faults-form.ts";
import { nextForm } from "./as-one.ts";
import { lacksPostgres } from "./postgres-server.ts";

const title = "requests of which each comes to the next host";
const skip = lacksPostgres || (!isLong && "only with CAPSULE_FAULTS=long");
if (skip === false) {
  process.env.CAPSULE_TEST_CLUSTER = nextForm;
  const names = ["processes", "ports", "keys"];
  const files = await Promise.all(names.map((name) => import(`../conformance/sections/${name}.ts`)));
  describe(title, { concurrency: 3 }, () => {
    for (const begin of files.flatMap((file) => Object.values(file))) (begin as () => void)();
  });
} else describe(title, { skip });
