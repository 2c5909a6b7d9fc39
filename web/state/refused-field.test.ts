import assert from "node:assert/strict";
import { test } from "node:test";
import { ServiceError } from "../../src/sdk/sdk.ts";
import { refusedField } from "./refused-field.ts";

const paths = ["network.allow", "network.host_header"];
const of = (field: unknown, message = "no") =>
  refusedField(new ServiceError("invalid_request", message, { details: { field } }), paths);

test("a refusal belongs to the field that it names, itself or by an entry", () => {
  assert.equal(of("network.allow")?.path, "network.allow");
  assert.equal(of("network.allow[12]")?.path, "network.allow");
  for (const other of ["network.allowed", "network", "name", undefined, 5]) assert.equal(of(other), undefined);
  assert.equal(refusedField(new ServiceError("conflict", "no"), paths), undefined);
  assert.equal(refusedField(new Error("no"), paths), undefined);
});

test("its sentence counts entries from one, and names no path", () => {
  assert.equal(of("network.allow[3]", "network.allow[3] must be string")?.text, "Entry 4 must be string");
  assert.equal(of("network.allow[3]", "network.allow[3], a, is reserved")?.text, "Entry 4, a, is reserved");
  assert.equal(of("network.host_header", "network.host_header must be a host")?.text, "It must be a host");
  assert.equal(of("network.allow", "the list is full")?.text, "The list is full");
});
