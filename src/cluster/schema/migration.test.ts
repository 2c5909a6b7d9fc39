/** Steps that a database may have run stay as they are: a database of an earlier program lacks whatever is changed in them. */
import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { test } from "node:test";
import { steps } from "./migration.ts";

/** The SHA-256 of each step that was released; of the last ones, which were not, there may be none here. */
const released = [
  "36530a99535bb68bd47542c4523be8bafe43bf672a07b0e6d22efc2d2ad801c3",
  "d4e6e14b9230fa24d101db9d1fea9020a2bff4e9f7ce286d839542d20709faac",
  "6714548e2d6a8674df820cf2cbe442da7a0a4910698a223eb875334e7acec8df",
  "b056eb6b1cc3fc2d4634fe01351c4e97160024ae96fced1a373a813ea6ce4617",
  "5c94296e81185ef66819b266c049ea96279846b8e44c067630473aacdfdf54d0",
  "4f6cdb8d8a7c2984dc2df72cab4fc0a5b30e58d754652d7704ddc2056bc52565",
  "039830611d17522d5a68013fa8bdb5073bf0d1dcefaf2d194eae37544be80cc2",
  "cb8204ab4ff72acffa4b22d525b137b1a24961c64fee1de597c62c6e8633a063",
  "27dbac4ee496c892c647fdfab91680dcc74f83c4a8567f1f2ef5c709f5eef9f7",
  "de1229293180d891b0863855d568f0076b0de1aa1afb4340a2b26bf7e998c113",
  "2300210610fff72c41ef2ea334c21a0ab64fe83e2b0c2daf08a0efeb03bf0762",
  "ff2e4df655e01e756e05b17f491ef062e4df49fd3452df7280007288e7c7e2d0",
  "a5cc7837f2238accf94232afb9f277710e288c1a81b8ff4518ce2b79f7ad8319",
  "ef390276f0d7205b7456f6000fe88bb3994d11a5b0e41bd8b7f0d2648e9f1eb7",
  "fe106d70d44514dcd3e781bd5f000f2976e6e113561fc8a2dcebe07f06221599",
  "3d75d5cc71d96ecfd1a712431c3e85101f8219d48847f8214cf4bea44ff0875d",
  "41ecf9ce0977e0c0d915bc7c21c207bcb60511c1a733511d2b2dd2f0b4f8d9bb",
  "0b45fb6f422af2b1e6a9aca0c8bae3b67d2402c98e366bcaa6054b4dec5a4ea4",
  "0eab057b39bbb3fbf2fb955d980187169c1be0b21f21c8ab952335196950e146",
  "1546ffc618d2cd9123faaab6bde601a868ce35bd1852f09fa11bd32d12d0e817",
  "c89a6c1ce243c9268fcfe7bf1c70f47ed98226a3285ba0a65f1a8e67596c850a",
  "04cefad921f7538b6836bfc3d7a2ef2ff079b46c83718f671ff20e87f430ca8f",
  "c4ecbad4c943ca9ce558381685934b11c581f41c5f031bf0ce23c412de391fba",
];

test("a step that was released has the text that it had", () => {
  const found = steps.slice(0, released.length).map((step) => hash("sha256", step, "hex"));
  assert.deepEqual(found, released);
});
