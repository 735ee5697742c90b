"""Parameter Store, CloudWatch logs, Route 53 and budgets."""

from __future__ import annotations

from infra.targets.aws.rehearse.plugin.calls import delete, read_existence
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    call_parameters,
    delete_if_exists,
    get_if_exists,
    tag_list,
    to_api,
)


def _create_parameter(aws: Aws, props: Props, tags: Tags) -> Created:
    aws.ssm.put_parameter(Tags=tag_list(tags), **call_parameters(props, "name type keyId value description"))
    return props["name"], {}


def _update_parameter(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.ssm.put_parameter(Overwrite=True, **call_parameters(news, "name type keyId value description"))
    aws.ssm.add_tags_to_resource(ResourceType="Parameter", ResourceId=id_, Tags=tag_list(tags))
    return {}


def _parameter(aws: Aws, id_: str, _props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.ssm.get_parameter(Name=id_, WithDecryption=True))
    return None if answer is None else {"value": answer["Parameter"]["Value"]}


def _create_log_group(aws: Aws, props: Props, tags: Tags) -> Created:
    name = props["name"]
    aws.logs.create_log_group(logGroupName=name, kmsKeyId=props["kmsKeyId"], tags=tags)
    return name, {}


def _set_retention(aws: Aws, id_: str, props: Props, _tags: Tags) -> Props:
    aws.logs.put_retention_policy(logGroupName=id_, retentionInDays=props["retentionInDays"])
    return {"arn": _log_group_arn(aws, id_)}


def _log_group_arn(aws: Aws, name: str) -> str:
    rows = aws.logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    arn: str = next(row["arn"] for row in rows if row["logGroupName"] == name)
    return arn.removesuffix(":*")


def _log_group(aws: Aws, id_: str, _props: Props) -> Props | None:
    rows = aws.logs.describe_log_groups(logGroupNamePrefix=id_)["logGroups"]
    row = next((row for row in rows if row["logGroupName"] == id_), None)
    # AWS leaves it out as long as nothing expires; the real provider then reads 0.
    return None if row is None else {"retentionInDays": row.get("retentionInDays", 0)}


def _update_log_group(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.logs.put_retention_policy(logGroupName=id_, retentionInDays=news["retentionInDays"])
    aws.logs.tag_log_group(logGroupName=id_, tags=tags)
    return {}


def _create_zone(aws: Aws, props: Props, _tags: Tags) -> Created:
    zone = aws.route53.create_hosted_zone(
        Name=props["name"],
        CallerReference=props["name"],
        HostedZoneConfig={"Comment": props["comment"], "PrivateZone": True},
        VPC={"VPCRegion": aws.region, "VPCId": props["vpcs"][0]["vpcId"]},
    )["HostedZone"]
    id_ = zone["Id"].rpartition("/")[2]
    return id_, {"zoneId": id_}


def _retag_zone(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    aws.route53.change_tags_for_resource(ResourceType="hostedzone", ResourceId=id_, AddTags=tag_list(tags))
    return {}


def _delete_zone(aws: Aws, id_: str, props: Props) -> None:
    if props.get("forceDestroy"):
        records = get_if_exists(lambda: aws.route53.list_resource_record_sets(HostedZoneId=id_)) or {}
        own_records = [
            record for record in records.get("ResourceRecordSets", ()) if record["Type"] not in ("NS", "SOA")
        ]
        changes = [{"Action": "DELETE", "ResourceRecordSet": record} for record in own_records]
        if changes:
            aws.route53.change_resource_record_sets(HostedZoneId=id_, ChangeBatch={"Changes": changes})
    delete_if_exists(lambda: aws.route53.delete_hosted_zone(Id=id_))


def _record_set(props: Props) -> Props:
    values = [{"Value": value} for value in props["records"]]
    return {"Name": props["name"], "Type": props["type"], "TTL": props["ttl"], "ResourceRecords": values}


def _change_record(aws: Aws, action: str, props: Props) -> None:
    changes = [{"Action": action, "ResourceRecordSet": _record_set(props)}]
    aws.route53.change_resource_record_sets(HostedZoneId=props["zoneId"], ChangeBatch={"Changes": changes})


def _create_record(aws: Aws, props: Props, _tags: Tags) -> Created:
    _change_record(aws, "UPSERT", props)
    return f"{props['zoneId']}_{props['name']}_{props['type']}", {"fqdn": props["name"]}


def _update_record(aws: Aws, _id: str, news: Props, _tags: Tags) -> Props:
    _change_record(aws, "UPSERT", news)
    return {}


def _record(aws: Aws, _id: str, props: Props) -> Props | None:
    start = {"StartRecordName": props["name"], "StartRecordType": props["type"]}
    answer = get_if_exists(lambda: aws.route53.list_resource_record_sets(HostedZoneId=props["zoneId"], **start))
    names = [record["Name"].rstrip(".") for record in (answer or {}).get("ResourceRecordSets", ())]
    return {} if props["name"] in names else None


def _delete_record(aws: Aws, _id: str, props: Props) -> None:
    delete_if_exists(lambda: _change_record(aws, "DELETE", props), "InvalidChangeBatch")


def _account(aws: Aws) -> str:
    number: str = aws.sts.get_caller_identity()["Account"]
    return number


def _budget_body(props: Props) -> Props:
    return {
        "BudgetName": props["name"],
        "BudgetType": props["budgetType"],
        "TimeUnit": props["timeUnit"],
        "BudgetLimit": {"Amount": props["limitAmount"], "Unit": props["limitUnit"]},
        "CostFilters": {cost_filter["name"]: cost_filter["values"] for cost_filter in props.get("costFilters") or ()},
    }


def _create_budget(aws: Aws, props: Props, tags: Tags) -> Created:
    account = _account(aws)
    notifications = [
        {
            "Notification": call_parameters(
                notification, "notificationType comparisonOperator threshold thresholdType"
            ),
            "Subscribers": [
                {"SubscriptionType": "EMAIL", "Address": address}
                for address in notification["subscriberEmailAddresses"]
            ],
        }
        for notification in props.get("notifications") or ()
    ]
    aws.budgets.create_budget(
        AccountId=account,
        Budget=_budget_body(props),
        NotificationsWithSubscribers=notifications,
        ResourceTags=tag_list(tags),
    )
    return f"{account}:{props['name']}", {}


def _budget(aws: Aws, id_: str, props: Props) -> Props | None:
    answer = get_if_exists(
        lambda: aws.budgets.describe_budget(AccountId=id_.partition(":")[0], BudgetName=props["name"])
    )
    return None if answer is None else {}


def _update_budget(aws: Aws, id_: str, news: Props, _tags: Tags) -> Props:
    aws.budgets.update_budget(AccountId=id_.partition(":")[0], NewBudget=_budget_body(news))
    return {}


def _delete_budget(aws: Aws, id_: str, props: Props) -> None:
    delete_if_exists(lambda: aws.budgets.delete_budget(AccountId=id_.partition(":")[0], BudgetName=props["name"]))


def _create_action(aws: Aws, props: Props, _tags: Tags) -> Created:
    threshold = props["actionThreshold"]
    response = aws.budgets.create_budget_action(
        AccountId=_account(aws),
        ActionThreshold={
            "ActionThresholdType": threshold["actionThresholdType"],
            "ActionThresholdValue": threshold["actionThresholdValue"],
        },
        Definition=to_api(props["definition"]),
        Subscribers=to_api(props["subscribers"]),
        **call_parameters(props, "budgetName notificationType actionType executionRoleArn approvalModel"),
    )
    return response["ActionId"], {}


def _action_parameters(aws: Aws, id_: str, props: Props) -> Props:
    return {"AccountId": _account(aws), "BudgetName": props["budgetName"], "ActionId": id_}


def _action(aws: Aws, id_: str, props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.budgets.describe_budget_action(**_action_parameters(aws, id_, props)))
    return None if answer is None else {}


def _delete_action(aws: Aws, id_: str, props: Props) -> None:
    delete_if_exists(lambda: aws.budgets.delete_budget_action(**_action_parameters(aws, id_, props)))


KINDS = (
    Kind(
        "aws:ssm/parameter:Parameter",
        "name",
        _create_parameter,
        delete("ssm", "delete_parameter", "Name"),
        _parameter,
        change="type! keyId value description",
        update=_update_parameter,
        tagged=True,
    ),
    Kind(
        "aws:cloudwatch/logGroup:LogGroup",
        "name",
        _create_log_group,
        delete("logs", "delete_log_group", "logGroupName"),
        _log_group,
        change="kmsKeyId retentionInDays",
        update=_update_log_group,
        complete=_set_retention,
        computed="arn",
        tagged=True,
    ),
    Kind(
        "aws:route53/zone:Zone",
        "name vpcs",
        _create_zone,
        _delete_zone,
        read_existence("route53", "get_hosted_zone", "Id"),
        change="comment forceDestroy",
        update=_retag_zone,
        complete=_retag_zone,
        computed="zoneId",
        tagged=True,
        nested={"vpcs": "vpcId"},
    ),
    Kind(
        "aws:route53/record:Record",
        "zoneId! name! type!",
        _create_record,
        _delete_record,
        _record,
        change="ttl records",
        update=_update_record,
        computed="fqdn",
    ),
    Kind(
        "aws:budgets/budget:Budget",
        "name budgetType!",
        _create_budget,
        _delete_budget,
        _budget,
        change="limitAmount limitUnit timeUnit! costFilters notifications",
        update=_update_budget,
        tagged=True,
        nested={
            "costFilters": "name values",
            "notifications": "comparisonOperator threshold thresholdType notificationType subscriberEmailAddresses",
        },
    ),
    Kind(
        "aws:budgets/budgetAction:BudgetAction",
        "budgetName! actionType!",
        _create_action,
        _delete_action,
        _action,
        change="approvalModel! notificationType! actionThreshold! definition! executionRoleArn! subscribers!",
        tagged=True,
        nested={
            "actionThreshold": "actionThresholdType actionThresholdValue",
            "definition": "iamActionDefinition policyArn roles",
            "subscribers": "subscriptionType address",
        },
    ),
)
