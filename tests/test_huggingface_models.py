"""Models of Hugging Face and LoRA by peft train as a plain PyTorch loop does, without a wrapper."""

import pytest
import torch

import undrift as ud
from plain_loops import fedavg, parameters_of, trainable

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft uses deprecated names
SIZES = {"a": 9, "b": 6}
LR, BATCH = 5e-3, 4
EPS = 1e-4
"""The gradient of an attention key's bias is zero but for rounding, which a smaller ε blows up."""


def classifier():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def language_model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def texts():
    g = torch.Generator().manual_seed(0)
    found = {}
    for id, n in SIZES.items():
        mask = torch.arange(6) < torch.randint(2, 7, (n, 1), generator=g)
        tokens = torch.randint(1, 20, (n, 6), generator=g) * mask
        found[id] = {"input_ids": tokens, "attention_mask": mask.long()}
    return found


def labelled():
    return {id: {**each, "labels": torch.arange(SIZES[id]) % 3} for id, each in texts().items()}


def plain(model, clients, optimizer):
    own = {
        id: (SIZES[id], lambda rows, round, epoch, each=each: {k: v[rows] for k, v in each.items()})
        for id, each in clients.items()
    }
    return fedavg(model, own, lambda model, b: model(**b).loss, optimizer, BATCH, epochs=2)


def train(model, clients, engine, **options):
    return ud.train(
        ud.FedAvg(),
        model=model,
        data=ud.data.FederatedData.from_clients(clients),
        local=ud.AdamW(LR, batch_size=BATCH, epochs=2, eps=EPS),
        rounds=2,
        engine=engine,
        **options,
    )


def adamw(parameters):
    return torch.optim.AdamW(parameters, LR, eps=EPS)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_classifier_with_named_batches_and_adamw(engine):
    result = train(classifier(), labelled(), engine)
    wanted = plain(classifier(), labelled(), adamw)
    assert torch.allclose(parameters_of(result), wanted, atol=1e-6)
    assert 0 <= result.records[-1].metrics["train_accuracy"] <= 1


def test_a_language_model_whose_labels_are_its_inputs():
    clients = {id: {**each, "labels": each["input_ids"]} for id, each in texts().items()}
    result = train(language_model(), clients, "serial")
    wanted = plain(language_model(), clients, adamw)
    assert torch.allclose(parameters_of(result), wanted, atol=1e-6)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_lora_by_peft_trains_and_sends_the_adapters_only(engine):
    peft = pytest.importorskip("peft")

    def adapted():
        config = peft.LoraConfig(
            task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"]
        )
        torch.manual_seed(1)
        return peft.get_peft_model(classifier(), config)

    result = train(adapted(), labelled(), engine)
    wanted = plain(adapted(), labelled(), adamw)
    assert torch.allclose(parameters_of(result), wanted, atol=1e-6)
    model = adapted()
    numbers = sum(p.numel() for p in trainable(model))
    assert numbers == result.run.losses.dimension < sum(p.numel() for p in model.parameters()) / 5
    assert sum(result.records[-1].bytes_up.values()) == 2 * 4 * numbers
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    after = dict(result.model().named_parameters())
    assert all(torch.equal(after[name], value) for name, value in frozen.items())
