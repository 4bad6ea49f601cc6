"""Fine-tuning a Hugging Face model with LoRA: only the adapters are trained, sent and stored.

    python examples/lora.py

Eight clients hold texts of unequal length, each with words of its own; the model says which of two
kinds a text is. The model has random weights, so that nothing is downloaded: with your own, write
AutoModelForSequenceClassification.from_pretrained(…). Needs transformers and peft:
pip install transformers peft.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForSequenceClassification

import undrift as ud

WORDS, LENGTH = 200, 24


def texts(client: int, number: int) -> list[tuple[Tensor, int]]:
    """Texts as token numbers, each with its kind: the second kind uses larger numbers."""
    generator = torch.Generator().manual_seed(client)
    found = []
    for sample in range(number):
        length = int(torch.randint(5, LENGTH, (1,), generator=generator))
        tokens = torch.randint(1 + client, WORDS // 2, (length,), generator=generator)
        found.append((tokens + (sample % 2) * WORDS // 2, sample % 2))
    return found


def padded(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """A batch as the model takes it, model(**batch): it returns its own loss."""
    tokens, labels = zip(*samples, strict=True)
    ids = pad_sequence(list(tokens), batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor(labels)}


def adapted() -> nn.Module:
    """A small BERT whose weights stay as they are, with adapters of rank 4 beside them."""
    torch.manual_seed(0)
    config = BertConfig(
        **{"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": LENGTH},
    )
    adapters = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), adapters)


def main(rounds: int = 10, samples: int = 60) -> ud.Result:
    """Train the adapters, and say what a round sends."""
    data = ud.data.FederatedData.from_clients(
        {f"client {k}": texts(k, samples) for k in range(8)},
        lazy=ud.data.Lazy(collate=padded),  # a batch is padded when it is made
    ).with_test(0.2)
    model = adapted()
    result = ud.train(
        ud.FedAvg(),
        model=model,
        data=data,
        local=ud.AdamW(lr=5e-3, batch_size=10, epochs=1),
        rounds=rounds,
    )
    whole = sum(p.numel() for p in model.parameters())
    print(f"{result.x.numel():,} of {whole:,} parameters travel", result.summary(), sep="\n")
    return result


if __name__ == "__main__":
    main()
