"""The names that the numbers of a survey have in a store."""

import pytest

from attncli.records.stored_columns import StoredColumn, SurveyNumber, parse_survey_columns, survey_number

NAMES = {
    "entropy": SurveyNumber("self", "entropy"),
    "sink_mass.rows": SurveyNumber("self", "sink_mass", counts_rows=True),
    "encoder.self.without_first.sink_mass.even": SurveyNumber("encoder", "sink_mass", True, is_even=True),
    "without_first.starts_special": SurveyNumber("self", "starts_special", without_first=True),
    "encoder.self.starts_special": SurveyNumber("encoder", "starts_special"),
    "decoder.cross.special_mass": SurveyNumber("cross", "special_mass"),
    "decoder.self.without_first.sink_mass.rows": SurveyNumber("decoder", "sink_mass", True, True),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_parsed_and_formatted(name: str) -> None:
    number = survey_number(name)
    assert number == NAMES[name] and number.name(has_stacks=number.stack != "self") == name


@pytest.mark.parametrize(
    "name", ["model.sink_rate", "texts.num_texts", "entropy.mean", "high_norm_patches.0.norm"]
)
def test_names_outside_surveys_are_not_parsed(name: str) -> None:
    assert survey_number(name) is None


def test_columns_of_all_weights_are_apart_from_those_of_the_rest() -> None:
    columns = (
        StoredColumn("model.sink_rate"),
        StoredColumn("decoder.self.entropy", 1, 3),
        StoredColumn("decoder.self.without_first.sink_mass", 1, 3),
        StoredColumn("decoder.self.sink_mass.rows"),
    )
    of_survey = parse_survey_columns(columns)
    assert [column.place for column in of_survey.all_weights] == [1, 3]
    assert [(column.place, column.layer, column.head) for column in of_survey.without_first] == [(2, 1, 3)]
