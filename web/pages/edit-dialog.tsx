/** The dialog that changes a capsule's name and labels, in every status. */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { capsuleNamePattern } from "../../src/wire/defaults.ts";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { PairsField } from "../parts/pairs-field.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { changeOfPairs, pairsIn, textOfPairs } from "../state/pairs.ts";

export function EditDialog({ capsule, onClose }: { capsule: CapsuleInfo; onClose: () => void }) {
  const { client, store } = useDashboard();
  const [name, setName] = useState(capsule.name ?? "");
  const [labels, setLabels] = useState(textOfPairs(capsule.labels));
  const save = async () => {
    const wanted = name.trim() === "" ? null : name.trim();
    const labelChange = changeOfPairs(capsule.labels, pairsIn(labels, "Labels"));
    const { info } = await client.capsule(capsule.id).update({
      ...(wanted === capsule.name ? {} : { name: wanted }),
      ...(labelChange === undefined ? {} : { labels: labelChange }),
    });
    store.changed(info);
  };
  return (
    <FormDialog title="Name and labels" confirm="Save" onConfirm={save} onClose={onClose}>
      <Field label="Name" hint="a–z, 0–9 and -, unique in the team. Stands for the id. Empty: none.">
        {(ties) => (
          <input
            {...ties}
            type="text"
            autocomplete="off"
            spellcheck={false}
            pattern={capsuleNamePattern}
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        )}
      </Field>
      <PairsField label="Labels" hint="KEY=VALUE, a line for each." text={labels} onChange={setLabels} />
    </FormDialog>
  );
}
