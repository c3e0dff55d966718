from torchmdx.models.origin import Origin


def test_text_shortens_the_hash_and_info_has_all_of_it():
    origin = Origin("a.safetensors", "0123456789abcdef" * 4)
    assert str(origin) == "a.safetensors (SHA-256 0123456789ab)"
    assert origin.info == {"potential": "a.safetensors", "potential_sha256": "0123456789abcdef" * 4}


def test_members_of_one_file_are_that_file_and_others_get_a_hash_of_all():
    first, second = Origin("a", "1" * 64), Origin("b", "2" * 64)
    assert Origin.together([first, first]) == first
    both = Origin.together([first, second])
    assert both.name == "a, b"
    assert both.sha256 not in (first.sha256, second.sha256)
    assert both != Origin.together([first, Origin("b", "3" * 64)])
    assert Origin.together([first, second] * 2).name == "an ensemble of 4 potentials"
